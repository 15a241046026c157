"""The model: a Llama of half a million parameters, which torch trains and vLLM serves."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch
from arithmetic import ANSWER_LENGTH_MAX, VOCABULARY, Problem, ids_of, text_of
from characters import END_ID, PAD_ID
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

# A bar for each checkpoint would fill the log.
logging.disable_progress_bar()


def new_model(seed: int) -> LlamaForCausalLM:
    """Returns a model with random weights, in float32."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=512,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=128,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=END_ID,
            pad_token_id=PAD_ID,
        )
    )


def load(folder: Path) -> LlamaForCausalLM:
    """Returns the model that `save` has written."""
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model


def save(model: LlamaForCausalLM, folder: Path) -> None:
    """Writes a model. The folder appears when it is complete, so a server never reads an incomplete model."""
    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    model.save_pretrained(unfinished)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(unfinished, folder)


def logprobs_of(model: LlamaForCausalLM, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the log-probability of each token after the first, and the entropy of its distribution.

    Args:
        model: the model.
        tokens: ids, padded on the right; shape `(rows, length)`. Attention is causal, so the padding after a
            row's end does not change the row.

    Returns:
        Both in nats and of shape `(rows, length - 1)`. The entropy has no gradient.
    """
    logprobs = model(input_ids=tokens[:, :-1], use_cache=False).logits.log_softmax(-1)
    entropy = -(logprobs.detach().exp() * logprobs.detach()).sum(-1)
    return logprobs.gather(-1, tokens[:, 1:, None])[:, :, 0], entropy


def answers(model: LlamaForCausalLM, problems: list[Problem], *, temperature: float, seed: int) -> list[str]:
    """Returns one answer to each problem.

    Args:
        model: the model.
        problems: the problems.
        temperature: the temperature of sampling; at 0 the most likely token is chosen.
        seed: the seed of sampling.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.tensor([ids_of(problem.prompt) for problem in problems])
    prompt_length = tokens.shape[1]
    for _ in range(ANSWER_LENGTH_MAX):
        with torch.no_grad():
            logits = model(input_ids=tokens, use_cache=False).logits[:, -1]
        if temperature == 0:
            chosen = logits.argmax(-1, keepdim=True)
        else:
            chosen = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
        tokens = torch.cat((tokens, chosen), 1)
    return [text_of(row) for row in tokens[:, prompt_length:].tolist()]


def accuracy(
    model: LlamaForCausalLM, problems: list[Problem], *, temperature: float = 1.0, seed: int = 1
) -> float:
    """Returns the share of problems that the model answers right, with one answer to each."""
    found = answers(model, problems, temperature=temperature, seed=seed)
    right = [text == problem.answer for text, problem in zip(found, problems, strict=True)]
    return sum(right) / len(right)
