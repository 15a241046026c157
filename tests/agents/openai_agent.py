"""An agent on the openai package. It calls a tool in each turn, and answers in the last one.

python openai_agent.py chat|chat-stream|responses|responses-stream|completions
"""

import json
import os
import sys

import openai
import tools


def chat(client, streams):
    offered = {
        "type": "function",
        "function": {
            "name": tools.NAME,
            "description": tools.DESCRIPTION,
            "parameters": tools.PARAMETERS,
            "strict": True,
        },
    }
    messages = [{"role": "system", "content": tools.SYSTEM}, {"role": "user", "content": tools.QUESTION}]
    for turn in range(tools.TURNS):
        calls = tools.calls_tool(turn)
        ask = {
            "model": tools.MODEL,
            "messages": messages,
            "tools": [offered],
            "tool_choice": "required" if calls else "none",
            "parallel_tool_calls": False,
            "max_tokens": tools.CALL_TOKENS if calls else tools.TEXT_TOKENS,
        }
        if streams:
            message = joined(client.chat.completions.create(**ask, stream=True))
        else:
            message = client.chat.completions.create(**ask).choices[0].message.model_dump(exclude_none=True)
        messages.append(message)
        made = message.get("tool_calls", [])
        for call in made:
            output = tools.add(**json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})
        assert bool(made) == calls, message
    return messages[-1]["content"]


def joined(chunks):
    """The message of a stream."""
    message = {"role": "assistant", "content": ""}
    made = {}
    for chunk in chunks:
        for choice in chunk.choices:
            message["content"] += choice.delta.content or ""
            for part in choice.delta.tool_calls or []:
                empty = {"type": "function", "function": {"name": "", "arguments": ""}}
                call = made.setdefault(part.index, empty)
                if part.id:
                    call["id"] = part.id
                call["function"]["name"] += part.function.name or ""
                call["function"]["arguments"] += part.function.arguments or ""
    if made:
        message["tool_calls"] = [made[index] for index in sorted(made)]
    return message


def responses(client, streams):
    offered = {
        "type": "function",
        "name": tools.NAME,
        "description": tools.DESCRIPTION,
        "parameters": tools.PARAMETERS,
        "strict": True,
    }
    items = [{"role": "user", "content": tools.QUESTION}]
    for turn in range(tools.TURNS):
        calls = tools.calls_tool(turn)
        ask = {
            "model": tools.MODEL,
            "instructions": tools.SYSTEM,
            "input": items,
            "tools": [offered],
            "tool_choice": "required" if calls else "none",
            "parallel_tool_calls": False,
            "max_output_tokens": tools.CALL_TOKENS if calls else tools.TEXT_TOKENS,
            "store": False,
        }
        if streams:
            ends = ("response.completed", "response.incomplete")
            events = client.responses.create(**ask, stream=True)
            (response,) = [event.response for event in events if event.type in ends]
        else:
            response = client.responses.create(**ask)
        made = [item for item in response.output if item.type == "function_call"]
        assert bool(made) == calls, response
        items += [item.model_dump(exclude_none=True) for item in response.output]
        for call in made:
            output = tools.add(**json.loads(call.arguments))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": output})
    return response.output_text


def completions(client, _streams):
    text = tools.QUESTION
    for _ in range(tools.TURNS):
        made = client.completions.create(model=tools.MODEL, prompt=text, max_tokens=tools.TEXT_TOKENS)
        text += made.choices[0].text + "\n"
    return made.choices[0].text


def main():
    surface, _, streams = sys.argv[1].partition("-")
    client = openai.OpenAI(base_url=os.environ["AGENT_BASE_URL"] + "/v1", api_key="none", max_retries=2)
    agent = {"chat": chat, "responses": responses, "completions": completions}[surface]
    print(json.dumps({"said": agent(client, streams == "stream")}))


if __name__ == "__main__":
    main()
