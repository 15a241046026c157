"""An agent of the package openai-agents, over the responses or the chat interface.

python openai_agents_agent.py responses|chat
"""

import json
import os
import sys
from typing import Literal

import agents
import openai
import tools


@agents.function_tool(name_override=tools.NAME, description_override=tools.DESCRIPTION)
def add(a: Literal["one", "two"], b: Literal["three", "four"]) -> str:
    return tools.add(a, b)


def main():
    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=os.environ["AGENT_BASE_URL"] + "/v1", api_key="none", max_retries=2)
    model_of = {"responses": agents.OpenAIResponsesModel, "chat": agents.OpenAIChatCompletionsModel}
    model = model_of[sys.argv[1]](model=tools.MODEL, openai_client=client)
    settings = agents.ModelSettings(
        tool_choice="required", parallel_tool_calls=False, max_tokens=tools.CALL_TOKENS, store=False
    )
    # After the first call the package resets the tool choice to auto, and a model with random weights would then generate
    # text without an end. With AGENT_ENDLESS the agent therefore calls the tool in every turn, until max_turns.
    resets = "AGENT_ENDLESS" not in os.environ
    agent = agents.Agent(
        name="calculator",
        instructions=tools.SYSTEM,
        tools=[add],
        model=model,
        model_settings=settings,
        reset_tool_choice=resets,
    )
    try:
        said = agents.Runner.run_sync(agent, tools.QUESTION, max_turns=tools.TURNS).final_output
    except agents.MaxTurnsExceeded:
        assert not resets
        said = None
    print(json.dumps({"said": said}))


if __name__ == "__main__":
    main()
