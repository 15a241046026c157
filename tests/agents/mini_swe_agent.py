"""The agent of the package mini-swe-agent, with the package's configuration for models without tool calls. The agent
reads a command in each answer of the model, and runs the command in a temporary folder."""

import json
import os
import pathlib
import tempfile

os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")

import minisweagent
import tools
import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel


def main():
    configuration = pathlib.Path(minisweagent.__file__).parent / "config/mini_textbased.yaml"
    settings = yaml.safe_load(configuration.read_text())
    # The key "mode" is only for the interactive program.
    agent_settings = {key: value for key, value in settings["agent"].items() if key != "mode"}
    arguments = {
        "api_base": os.environ["AGENT_BASE_URL"] + "/v1",
        "api_key": "none",
        "max_tokens": tools.CALL_TOKENS,
    }
    model_settings = settings["model"] | {"model_kwargs": arguments, "cost_tracking": "ignore_errors"}
    model = LitellmTextbasedModel(model_name="openai/" + tools.MODEL, **model_settings)
    with tempfile.TemporaryDirectory() as folder:
        environment = LocalEnvironment(**settings.get("environment", {}) | {"cwd": folder})
        agent = DefaultAgent(model, environment, **agent_settings | {"step_limit": tools.TURNS})
        end = agent.run("What is one plus three?")
    print(json.dumps({"said": end["submission"]}))


if __name__ == "__main__":
    main()
