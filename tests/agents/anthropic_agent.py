"""An agent on the anthropic package. It calls a tool in each turn, and answers in the last one.

python anthropic_agent.py messages|messages-stream
"""

import json
import os
import sys

import anthropic
import tools


def main():
    streams = sys.argv[1].endswith("-stream")
    client = anthropic.Anthropic(base_url=os.environ["AGENT_BASE_URL"], api_key="none", max_retries=2)
    offered = {
        "name": tools.NAME,
        "description": tools.DESCRIPTION,
        "input_schema": tools.PARAMETERS,
        "strict": True,
    }
    messages = [{"role": "user", "content": tools.QUESTION}]
    for turn in range(tools.TURNS):
        calls = tools.calls_tool(turn)
        choice = {"type": "any", "disable_parallel_tool_use": True} if calls else {"type": "none"}
        ask = {
            "model": tools.MODEL,
            "system": tools.SYSTEM,
            "messages": messages,
            "tools": [offered],
            "tool_choice": choice,
            "max_tokens": tools.CALL_TOKENS if calls else tools.TEXT_TOKENS,
        }
        if streams:
            with client.messages.stream(**ask) as stream:
                message = stream.get_final_message()
        else:
            message = client.messages.create(**ask)
        messages.append({"role": "assistant", "content": message.content})
        made = [block for block in message.content if block.type == "tool_use"]
        assert bool(made) == calls, message
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": tools.add(**block.input)} for block in made
        ]
        if results:
            messages.append({"role": "user", "content": results})
    print(json.dumps({"said": message.content[0].text}))


if __name__ == "__main__":
    main()
