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


def test_metrics_are_prometheus_text(bed):
    """Read by Prometheus' own Python parser: every family once, no series twice, histograms that add up."""
    from prometheus_client.parser import text_string_to_metric_families

    curl(bed.url + "/v1/chat/completions", "-d", '{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}')
    families = list(text_string_to_metric_families(curl(bed.url + "/metrics")))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    series = [(sample.name, tuple(sorted(sample.labels.items()))) for family in families for sample in family.samples]
    assert len(series) == len(set(series))
    for name, labels in {
        "dynamo_frontend_requests": {"model", "endpoint", "request_type", "status", "error_type"},
        "dynamo_frontend_inflight_requests": {"model"},
        "dynamo_frontend_queued_requests": {"model"},
        "dynamo_frontend_output_tokens": {"model"},
        "dynamo_frontend_request_duration_seconds": {"model"},
        "dynamo_frontend_time_to_first_token_seconds": {"model"},
        "dynamo_frontend_inter_token_latency_seconds": {"model"},
        "dynamo_frontend_input_sequence_tokens": {"model"},
        "dynamo_frontend_output_sequence_tokens": {"model"},
        "dynamo_frontend_cached_tokens": {"model"},
        "dynamo_component_inflight_requests": {"dynamo_namespace", "dynamo_component", "dynamo_endpoint", "worker_id"},
        "dynamo_component_router_kv_hit_rate": set(),
        "kvlane_feed_lag_seconds": {"worker", "rank"},
        "kvlane_worker_state": {"worker", "state"},
    }.items():
        family = next(family for family in families if family.name == name)
        assert family.documentation and labels <= set(family.samples[0].labels), name
    for family, bound in [("time_to_first_token", "0.6"), ("inter_token_latency", "0.06")]:
        name = f"dynamo_frontend_{family}_seconds"
        buckets = next(each for each in families if each.name == name).samples
        assert any(sample.labels.get("le") == bound for sample in buckets), f"{name} resolves {bound}"
