"""LangChain, curl, and schemathesis with our own description of the API."""

import json
import subprocess
import sys

from langchain_openai import ChatOpenAI

from conftest import MODEL


def test_langchain(bed):
    model = ChatOpenAI(model=MODEL, base_url=bed.url + "/v1", api_key="none", max_tokens=6)
    answer = model.invoke([("system", "Be brief."), ("user", "What is a KV cache?")])
    assert answer.content and answer.usage_metadata["output_tokens"] == 6
    assert "".join(chunk.content for chunk in model.stream("And a radix tree?"))
    both = model.batch(["one", "two"])
    assert len(both) == 2 and all(answer.content for answer in both)


def curl(*arguments):
    return subprocess.run(["curl", "-s", *arguments], capture_output=True, text=True, check=True, timeout=30).stdout


def test_curl(bed):
    chat = bed.url + "/v1/chat/completions"
    # No content type but curl's own, as people type it.
    answer = json.loads(curl(chat, "-d", '{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}'))
    assert answer["usage"]["completion_tokens"] == 4
    stream = curl("-N", chat, "-d", '{"stream": true, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}')
    assert stream.startswith("data: {") and stream.endswith("data: [DONE]\n\n")
    assert "HTTP/2 200" in curl("-i", "--http2-prior-knowledge", bed.url + "/v1/models")
    status = curl("-o", "/dev/null", "-w", "%{http_code}", chat, "-d", "{")
    assert status == "400"
    explained = json.loads(curl(bed.admin + "/admin/explain", "-d", '{"messages": [{"role": "user", "content": "Hello"}]}'))
    assert len(explained["candidates"]) == 3


def test_no_request_of_any_shape_is_answered_with_a_5xx(bed):
    """Everything our description allows, and much that it does not; seeded, bounded in count."""
    command = [
        sys.executable, "-m", "schemathesis.cli", "run", bed.url + "/openapi.json", "--url", bed.url,
        "--checks", "not_a_server_error,content_type_conformance,response_headers_conformance",
        "--mode", "all", "--max-examples", "40", "--seed", "7", "--phases", "examples,coverage,fuzzing",
        "--workers", "1", "--no-color",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert bed.in_flight() == 0
