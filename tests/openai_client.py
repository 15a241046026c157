"""Calls a server with the openai package. The arguments are the server's URL and the model."""

import sys

from openai import BadRequestError, NotFoundError, OpenAI

url, model = sys.argv[1:]
client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)

assert model in [listed.id for listed in client.models.list()]

completion = client.completions.create(model=model, prompt="Two and two is", max_tokens=16, n=2, seed=1)
assert len(completion.choices) == 2 and completion.usage.completion_tokens > 0

stream = client.completions.create(model=model, prompt="Two and two is", max_tokens=16, seed=1, stream=True)
streamed = "".join(event.choices[0].text for event in stream if event.choices)
assert streamed == completion.choices[0].text, (streamed, completion.choices[0].text)

messages = [{"role": "user", "content": "What is two and two?"}]
chat = client.chat.completions.create(model=model, messages=messages, max_tokens=16, seed=1)
stream = client.chat.completions.create(model=model, messages=messages, max_tokens=16, seed=1, stream=True)
streamed = "".join(event.choices[0].delta.content or "" for event in stream if event.choices)
assert streamed == chat.choices[0].message.content, (streamed, chat.choices[0].message.content)

ids = client.completions.create(model=model, prompt=[5, 6, 7], max_tokens=4, extra_body={"return_token_ids": True})
assert len(ids.choices[0].token_ids) == ids.usage.completion_tokens

for mistake, words in [({"model": "another"}, "another"), ({"max_tokens": -1}, "-1")]:
    try:
        client.completions.create(**({"model": model, "prompt": "x"} | mistake))
    except (BadRequestError, NotFoundError) as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"{mistake} was accepted")

print("the openai package is served")
