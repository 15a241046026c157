"""Compares the rows of a gateway with what the engine says it made."""

import collections


def turns_of(rows):
    """Every trained turn of the rows: the ids before it, its ids, its log-probabilities and its version spans."""
    for row in rows:
        ids = row["prompt_ids"] + row["response_ids"]
        before = len(row["prompt_ids"])
        for start, end in zip(row["turn_starts"], row["turn_ends"], strict=True):
            mask = set(row["response_mask"][start:end])
            assert len(mask) == 1, f"a turn is trained in part: {row['response_mask'][start:end]}"
            if mask == {0}:
                continue
            spans = [
                (span["version"], max(span["start"], start) - start, min(span["end"], end) - start)
                for span in row["version_spans"]
                if span["start"] < end and span["end"] > start
            ]
            yield {
                "prompt": ids[: before + start],
                "ids": ids[before + start : before + end],
                "logprobs": row["rollout_logprobs"][start:end],
                "spans": spans,
            }


def whole_turns(exchanges):
    """The prompt and the choice of each turn. An answer that the engine ended early, and the answers that continue it,
    are one turn. Siblings may have equal tokens, so the requests of a call are found by their id, which ends with
    their number in the call."""
    begun = {}
    for exchange in exchanges:
        prompt, choice = exchange.prompt_ids(), exchange.choice()
        call, _, _ = exchange.request["request_id"].rpartition("-")
        first, before = begun.pop(call, (prompt, None))
        if before and prompt != first + before["token_ids"]:
            # The prompt does not continue the earlier answer, so the call was repeated from its start.
            first, before = prompt, None
        if before:
            shift = len(before["token_ids"])
            spans = [
                {"version": span["version"], "start": span["start"] + shift, "end": span["end"] + shift}
                for span in choice["weight_versions"]
            ]
            choice = {
                "finish_reason": choice["finish_reason"],
                "token_ids": before["token_ids"] + choice["token_ids"],
                "logprobs": {"content": before["logprobs"]["content"] + choice["logprobs"]["content"]},
                "weight_versions": joined(before["weight_versions"] + spans),
            }
        if choice["finish_reason"] == "abort":
            begun[call] = (first, choice)
        else:
            yield first, choice


def joined(spans):
    """Joins neighbouring spans of one version into one span."""
    kept = []
    for span in spans:
        if kept and kept[-1]["version"] == span["version"]:
            kept[-1] = {**kept[-1], "end": span["end"]}
        else:
            kept.append(span)
    return kept


def compare(rows, exchanges, lost=False):
    """Checks that rows are exactly what the engine made, and that each sampled token is trained once. With `lost`,
    turns that no agent received may be missing. Returns the number of turns and of sampled tokens in the rows."""
    made = collections.Counter()
    details = collections.defaultdict(list)
    for prompt, choice in whole_turns(exchanges):
        key = (tuple(prompt), tuple(choice["token_ids"]))
        made[key] += 1
        details[key].append(choice)
    trained = collections.Counter()
    for turn in turns_of(rows):
        key = (tuple(turn["prompt"]), tuple(turn["ids"]))
        trained[key] += 1
        assert key in details, f"a row has a turn that the engine did not make: {describe(turn, made)}"
        # Siblings may have equal tokens.
        faults = [fault_of(turn, choice) for choice in details[key]]
        assert None in faults, faults[0]
    twice, missing = trained - made, made - trained
    assert not twice, f"rows train {twice.total()} turns twice"
    assert lost or not missing, f"the engine made {missing.total()} turns that no row trains"
    sampled = sum(len(ids) * count for (_, ids), count in trained.items())
    masked = sum(sum(row["response_mask"]) for row in rows)
    assert masked == sampled, f"masks sum to {masked}, the trained turns have {sampled} tokens"
    return trained.total(), sampled


def fault_of(turn, choice):
    """What differs between a turn of a row and an answer of the engine, if anything does."""
    reported = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    near = [abs(mine - theirs) < 1e-4 for mine, theirs in zip(turn["logprobs"], reported, strict=True)]
    if not all(near):
        return f"log-probabilities differ at token={near.index(False)}: {turn['logprobs']} and {reported}"
    spans = [(str(span["version"]), span["start"], span["end"]) for span in choice["weight_versions"]]
    mine = [(str(version), start, end) for version, start, end in turn["spans"]]
    return None if mine == spans else f"version spans differ: {mine} and {spans}"


def describe(turn, made):
    """What is wrong with a turn, in words."""
    same = [prompt for prompt, ids in made if list(ids) == turn["ids"]]
    if not same:
        return f"ids={turn['ids'][:16]}... were never sampled"
    shared = max(common(list(prompt), turn["prompt"]) for prompt in same)
    return f"its prompt differs from the prompt that was sent after tokens={shared} of {len(turn['prompt'])}"


def common(one, other):
    pairs = zip(one, other)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def continued(exchanges):
    """The number of prompts that begin with an earlier prompt and all tokens that were sampled for it."""
    paths = [exchange.prompt_ids() + exchange.choice()["token_ids"] for exchange in exchanges]
    prompts = [exchange.prompt_ids() for exchange in exchanges]
    return sum(any(prompt[: len(path)] == path for path in paths) for prompt in prompts)
