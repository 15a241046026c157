"""What the scripted model says to each agent. The pieces of a text are encoded one by one, so that a call is in tokens
that no tokenizer would choose for its text."""

import json
import random


def pieces(text, seed):
    """Cuts a text at random positions. The positions do not depend on the words."""
    draw = random.Random(seed)
    places = sorted(draw.sample(range(1, len(text)), min(len(text) - 1, 2 + len(text) // 4)))
    bounds = [0, *places, len(text)]
    return [text[start:end] for start, end in zip(bounds, bounds[1:])]


def call(name, **arguments):
    # The spaces are not those that Python or a template would write.
    said = json.dumps({"name": name, "arguments": arguments}, separators=(" ,", ":"))
    return f"<tool_call>\n{said}\n</tool_call>"


def script(*texts):
    """Each turn has two variants with the same text and other tokens. The turn's seed chooses one."""
    turns = []
    for place, text in enumerate(texts):
        cut = [pieces(text, 2 * place + variant) for variant in range(2)]
        turns.append({"variants": [{"pieces": variant} for variant in cut]})
    return {"turns": turns}


ADD = call("add", a="one", b="three")
AGAIN = "Once more.\n" + call("add", a="two", b="four")
# White space and letters that a template or a client may change.
SAID = "It is  four \u2014 caf\u00e9.\n\n"
CALCULATOR = script(ADD, AGAIN, SAID)
SMOLAGENTS = script(ADD, call("final_answer", answer="four"))
SHELL = script(
    "THOUGHT: I look.\n\n```mswea_bash_command\necho  one three\n```",
    "THOUGHT: I am done.\n\n```mswea_bash_command\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo four\n```",
)
