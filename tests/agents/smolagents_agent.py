"""An agent of the package smolagents that calls tools. It writes its earlier calls into the conversation in words of
its own, so its prompts do not continue each other."""

import json
import os

import smolagents
import tools


class Add(smolagents.Tool):
    name = tools.NAME
    description = tools.DESCRIPTION
    inputs = {
        "a": {"type": "string", "description": "a number", "enum": ["one", "two"]},
        "b": {"type": "string", "description": "a number", "enum": ["three", "four"]},
    }
    output_type = "string"

    def forward(self, a: str, b: str) -> str:
        return tools.add(a, b)


def main():
    model = smolagents.OpenAIModel(
        model_id=tools.MODEL,
        api_base=os.environ["AGENT_BASE_URL"] + "/v1",
        api_key="none",
        max_tokens=tools.CALL_TOKENS,
    )
    # A model with random weights may answer at once. The package asks again if a check refuses the answer.
    checks = [lambda _answer, _memory, agent: agent.step_number > 1] if "AGENT_ENDLESS" in os.environ else []
    agent = smolagents.ToolCallingAgent(
        tools=[Add()], model=model, max_steps=tools.TURNS, verbosity_level=0, final_answer_checks=checks
    )
    print(json.dumps({"said": str(agent.run(tools.QUESTION))}))


if __name__ == "__main__":
    main()
