"""Tokenizers whose tokens are characters, in the form of Hugging Face."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

#: The first tokens of every vocabulary, in the order of their ids.
PAD, UNKNOWN, END = "<pad>", "<unknown>", "<end>"
FIRST = (PAD, UNKNOWN, END)
PAD_ID, UNKNOWN_ID, END_ID = range(3)


def write_tokenizer(
    folder: Path, tokens: Sequence[str], *, chat_template: str | None = None, special: Sequence[str] = FIRST
) -> None:
    """Writes `tokenizer.json` and `tokenizer_config.json`.

    Args:
        folder: the folder for the files. It is created if it does not exist.
        tokens: the tokens in the order of their ids. They begin with `FIRST`.
        chat_template: a template in Jinja, for models that take messages.
        special: the tokens that have more than one character.
    """
    if tuple(tokens[: len(FIRST)]) != FIRST:
        raise ValueError(f"expected the tokens {FIRST} first, found {tokens[: len(FIRST)]}")
    added = [
        {"id": tokens.index(token), "content": token, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for token in special
    ]
    tokenizer = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "."},
            "behavior": "Isolated",
            "invert": False,
        },
        "decoder": {"type": "Fuse"},
        "model": {
            "type": "WordLevel",
            "vocab": {token: number for number, token in enumerate(tokens)},
            "unk_token": UNKNOWN,
        },
    }
    config = {"eos_token": END, "pad_token": PAD, "unk_token": UNKNOWN}
    if chat_template is not None:
        # The class tells a server how to load the tokenizer. A text is decoded as it is.
        config |= {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": chat_template}
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config | {"clean_up_tokenization_spaces": False})
    )
