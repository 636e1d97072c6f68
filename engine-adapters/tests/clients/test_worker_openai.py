"""The simulated worker as an unmodified OpenAI client and curl see it."""

import json
import subprocess

import openai
import pytest

MODEL = "kvlane-small"
HELLO = [{"role": "user", "content": "Hello there"}]


@pytest.fixture
def client(start):
    return openai.OpenAI(base_url=start().url + "/v1", api_key="none", max_retries=0, timeout=20)


def test_models(client):
    assert [model.id for model in client.models.list()] == [MODEL]


def test_chat_whole_and_streamed_say_the_same(client):
    whole = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=40)
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 40
    assert whole.usage.prompt_tokens_details.cached_tokens == 0
    stream = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=40, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 40


def test_an_answer_ends_by_itself(client):
    answer = client.chat.completions.create(model=MODEL, messages=HELLO)
    assert answer.choices[0].finish_reason == "stop"
    assert 64 <= answer.usage.completion_tokens <= 513


def test_completions_of_text_and_of_tokens(client):
    text = client.completions.create(model=MODEL, prompt="Hello there", max_tokens=8, logprobs=1)
    assert len(text.choices[0].logprobs.tokens) == 8
    several = client.completions.create(model=MODEL, prompt=[[5, 6, 7], [8, 9]], max_tokens=8, n=2)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert several.usage.prompt_tokens == 5


def test_tools(client):
    tool = {
        "type": "function",
        "function": {
            "name": "lookup",
            "parameters": {"type": "object", "properties": {"key": {"type": "string"}}},
        },
    }
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, tools=[tool], tool_choice="required")
    call = answer.choices[0].message.tool_calls[0]
    assert (answer.choices[0].finish_reason, call.function.name) == ("tool_calls", "lookup")
    assert json.loads(call.function.arguments) == {"key": "cache"}


def test_errors_are_what_the_client_expects(client):
    with pytest.raises(openai.NotFoundError, match="does not exist. Valid aliases: kvlane-small"):
        client.chat.completions.create(model="nope", messages=HELLO)
    with pytest.raises(openai.BadRequestError, match="max_tokens must be at least 1") as caught:
        client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=-1)
    assert caught.value.param == "max_tokens"


def test_a_closed_stream_is_left_early(client):
    stream = client.completions.create(
        model=MODEL, prompt="Hi", max_tokens=100_000, stream=True, extra_body={"ignore_eos": True}
    )
    assert next(iter(stream)).choices[0].text
    stream.close()
    assert client.completions.create(model=MODEL, prompt="Hi", max_tokens=1).choices[0].text


def test_curl(start):
    worker = start()
    body = json.dumps({"messages": HELLO, "max_tokens": 5, "stream": True})
    out = subprocess.run(
        ["curl", "-sSN", "-i", worker.url + "/v1/chat/completions", "-H", "content-type: application/json", "-d", body],
        capture_output=True, text=True, check=True, timeout=20,
    ).stdout
    assert out.startswith("HTTP/1.1 200 OK")
    assert "content-type: text/event-stream" in out
    assert out.rstrip().endswith("data: [DONE]")
