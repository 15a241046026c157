"""Runs agents from PyPI, unmodified, through a gateway, and compares the rows of the gateway with what the engine says
it made. Needs pyarrow.

python main.py BINARY ENVIRONMENTS [--vllm URL TOKENIZER] AGENT...

ENVIRONMENTS is a folder with a Python environment for each agent.
"""

import argparse
import json
import pathlib
import re
import subprocess
import tempfile

import compare
import scripts
from world import ROOT, World

FOLDER = pathlib.Path(__file__).resolve().parent
AGENT_S = 300
GUIDE_URL = "http://127.0.0.1:8100"

# The program of each agent, its ways of talking to the gateway, and what the scripted model says to it.
AGENTS = {
    "openai": (
        "openai_agent.py",
        ["chat", "chat-stream", "responses", "responses-stream", "completions"],
        scripts.CALCULATOR,
    ),
    "anthropic": ("anthropic_agent.py", ["messages", "messages-stream"], scripts.CALCULATOR),
    "openai-agents": ("openai_agents_agent.py", ["responses", "chat"], scripts.CALCULATOR),
    "smolagents": ("smolagents_agent.py", [""], scripts.SMOLAGENTS),
    "mini-swe-agent": ("mini_swe_agent.py", [""], scripts.SHELL),
}
# Agents that send the conversation back as they got it, so each turn continues the turn before. (mini-swe-agent sends
# it unchanged if the answer has a command.)
FAITHFUL = {"openai", "anthropic", "openai-agents", "mini-swe-agent"}


def run_agent(world, environments, agent, way, made, more):
    program, _, _ = AGENTS[agent]
    words = [environments / agent / "bin/python", FOLDER / program, *filter(None, [way])]
    done = subprocess.run(
        list(map(str, words)), env=world.environment(made, **more), capture_output=True, text=True, timeout=AGENT_S
    )
    assert done.returncode == 0, f"{agent} {way}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return json.loads(done.stdout.splitlines()[-1])["said"]


def play(world, environments, agent, way, faithful, **more):
    """Runs one agent on one trajectory. Returns the agent's last text, and what the engine made for the agent."""
    # The seed makes equal turns draw equal tokens, whatever interface asks for them.
    made = world.open(prompt="calculate", sampling={"temperature": 1.0, "top_p": 1.0, "top_k": -1, "seed": 7})
    said = run_agent(world, environments, agent, way, made, more)
    world.complete(made, 1.0)
    rows = world.rows([made])
    exchanges = world.relay.generated(made["trajectory"])
    turns, tokens = compare.compare(rows, exchanges)
    continued = compare.continued(exchanges)
    print(f"{agent} {way or 'chat'}: turns={turns} tokens={tokens} rows={len(rows)} continued={continued}", flush=True)
    assert turns > 1, "one turn shows nothing about what continues it"
    if faithful:
        assert len(rows) == 1, f"expected one row, the gateway made {len(rows)}"
        assert continued == turns - 1, f"only {continued} of {turns - 1} turns continue the sampled tokens"
    return said, exchanges


def check_words(agent, way, said):
    """The agent got the scripted text without a change, however the tokens were cut."""
    expected = {"smolagents": "four", "mini-swe-agent": "four\n"}.get(agent, scripts.SAID)
    if way != "completions":
        assert said.strip() == expected.strip(), f"{agent} {way} got {said!r}, expected {expected!r}"


def guide(binary, environments, folder):
    """Runs the program of the guide. Only the address of the gateway is changed."""
    page = (ROOT / "docs/src/gateway.md").read_text()
    program = re.search(r"<!-- run: agent -->\n\n```python\n(.*?)```", page, re.DOTALL).group(1)
    with World(binary, folder / "guide", script=scripts.script("It is  three.", "Yes \u2014 I am.")) as world:
        assert program.count(GUIDE_URL) == 1, f"expected one {GUIDE_URL} in the program of the guide"
        words = [environments / "openai/bin/python", "-c", program.replace(GUIDE_URL, world.gateway.url)]
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=AGENT_S)
        assert done.returncode == 0, f"the program of the guide: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        exchanges = world.relay.generated()
        # The gateway begins the id of each request with the name of the trajectory.
        (name,) = {"-".join(exchange.request["request_id"].split("-")[:2]) for exchange in exchanges}
        (row,) = world.rows([{"trajectory": name}])
        turns, tokens = compare.compare([row], exchanges)
        assert (turns, row["reward"], json.loads(row["metadata"])) == (2, 1.0, {"row": 17}), row
        assert done.stdout.splitlines()[-1] == "Yes \u2014 I am.", done.stdout
        print(f"the program of the guide: turns={turns} tokens={tokens}", flush=True)


def scripted(binary, environments, agents, folder):
    if "openai" in agents:
        guide(binary, environments, folder)
    conversations = {}
    for agent in agents:
        _, ways, script = AGENTS[agent]
        with World(binary, folder / agent, script=script) as world:
            for way in ways:
                said, exchanges = play(world, environments, agent, way, agent in FAITHFUL)
                check_words(agent, way, said)
                if agent in ("openai", "anthropic") and way != "completions":
                    turns = [(exchange.prompt_ids(), exchange.choice()["token_ids"]) for exchange in exchanges]
                    conversations[f"{agent} {way}"] = turns
    for name, turns in conversations.items():
        first = next(iter(conversations))
        assert turns == conversations[first], f"{name} and {first} have different tokens for the same conversation"
    if conversations:
        print(f"{len(conversations)} interfaces have the same tokens for the same conversation", flush=True)


def random_weights(binary, environments, agents, folder, url, tokenizer):
    for agent in agents:
        _, ways, _ = AGENTS[agent]
        arguments = {"engine_url": url, "model": "tiny-qwen3", "tokenizer_folder": tokenizer}
        with World(binary, folder / f"{agent}-vllm", **arguments) as world:
            for way in ways:
                faithful = agent in FAITHFUL - {"mini-swe-agent"}
                play(world, environments, agent, way, faithful, AGENT_ENDLESS="1")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("environments", type=pathlib.Path)
    parser.add_argument("agents", nargs="+", choices=AGENTS)
    parser.add_argument("--vllm", nargs=2, metavar=("URL", "TOKENIZER"))
    parser.add_argument("--logs", type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.logs or pathlib.Path(temporary)
        words = [options.binary.resolve(), options.environments, options.agents, folder]
        if options.vllm:
            url, tokenizer = options.vllm
            random_weights(*words, url, pathlib.Path(tokenizer))
        else:
            scripted(*words)


if __name__ == "__main__":
    main()
