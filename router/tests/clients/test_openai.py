"""OpenAI's own client, unmodified but for its base URL."""

import time

import openai
import pytest

from conftest import MODEL

LONG = "Tell me how a router knows what its workers have cached. " * 20


@pytest.fixture
def client(bed):
    return openai.OpenAI(base_url=bed.url + "/v1", api_key="none", max_retries=0)


def ask(client, text=LONG, **more):
    return client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": text}], **{"max_tokens": 8, **more}
    )


def test_models(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_chat_and_its_usage(client):
    answer = ask(client)
    assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 8


def test_a_conversation_meets_its_cache(client):
    messages, workers = [{"role": "user", "content": "A new subject. " + LONG}], set()
    for turn in range(4):
        raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=messages, max_tokens=30)
        answer = raw.parse()
        workers.add(raw.headers["x-kvlane-worker"])
        cached = answer.usage.prompt_tokens_details.cached_tokens
        assert turn == 0 or cached > answer.usage.prompt_tokens * 0.6, f"turn {turn}: {cached}"
        messages += [answer.choices[0].message, {"role": "user", "content": "And then?"}]
    assert len(workers) == 1


def test_streams_have_no_usage_unless_asked(client):
    chunks = list(ask(client, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 8


def test_completions(client):
    for prompt in ["Once upon a time", ["one", "two"], [5, 6, 7], [[5, 6], [7, 8]]]:
        answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=3)
        assert answer.usage.completion_tokens >= 3
    text = "".join(
        chunk.choices[0].text for chunk in client.completions.create(model=MODEL, prompt="x", max_tokens=5, stream=True)
    )
    assert text


def test_tools_logprobs_and_n(client):
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
    answer = ask(client, tools=[tool], tool_choice="required", max_tokens=64)
    assert answer.choices[0].message.tool_calls[0].function.name == "look_up"
    chunks = list(ask(client, tools=[tool], tool_choice="required", max_tokens=64, stream=True))
    assert any(chunk.choices[0].delta.tool_calls for chunk in chunks)
    answer = ask(client, logprobs=True, top_logprobs=2)
    assert len(answer.choices[0].logprobs.content) == 8 and answer.choices[0].logprobs.content[0].top_logprobs
    assert len(ask(client, n=3).choices) == 3
    indexes = {choice.index for chunk in ask(client, n=2, stream=True) for choice in chunk.choices}
    assert indexes == {0, 1}


def test_errors_are_the_clients_own_exceptions(client):
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "x"}])
    assert unknown.value.code == "model_not_found" and MODEL in unknown.value.message
    with pytest.raises(openai.BadRequestError) as missing:
        client.chat.completions.create(model=MODEL, messages=[])
    assert missing.value.param == "messages"
    with pytest.raises(openai.BadRequestError):
        ask(client, max_tokens=-1)


def test_a_closed_stream_frees_its_place(client, bed):
    stream = ask(client, max_tokens=100_000, stream=True)
    next(iter(stream))
    stream.close()
    for _ in range(200):
        if bed.in_flight() == 0:
            return
        time.sleep(0.02)
    raise AssertionError("the request is still placed")


def test_request_ids_come_back(client):
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": "x"}], max_tokens=2, extra_headers={"x-request-id": "my-id"}
    )
    assert raw.headers["x-request-id"] == "my-id" and raw.parse().id == "chatcmpl-my-id"
