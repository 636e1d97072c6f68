"""Keys as OpenAI's own client meets them."""

import hashlib
import os
import subprocess
import time

import openai
import pytest

from conftest import KVLANE, MODEL, free_ports, get


@pytest.fixture(scope="module")
def url(bed, tmp_path_factory):
    """A router of its own before the session's workers, with keys."""

    def entry(name, *more):
        digest = hashlib.sha256(f"{name}-secret".encode()).hexdigest()
        return "\n".join(["[[keys]]", f'name = "{name}"', f'sha256 = "{digest}"', *more, ""])

    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text(
        entry("open") + entry("counted", "requests_per_minute = 2") + entry("narrow", "models = ['another-*']")
    )
    (port,) = free_ports(1)
    flags = ["--host", "127.0.0.1", "--port", str(port), "--admin-port", "0", "--api-keys", keys]
    flags += ["--set", "server.drain_wait_s=0"]
    for worker in bed.workers:
        flags += ["--worker", worker]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DYN_", "NATS_"))}
    router = subprocess.Popen([KVLANE, *flags], env={**environment, "RUST_LOG": "warn"})
    url = f"http://127.0.0.1:{port}"
    for _ in range(500):
        try:
            if get(url + "/ready"):
                break
        except OSError:
            assert router.poll() is None, "the router did not start"
        time.sleep(0.02)
    yield url
    router.terminate()
    assert router.wait(timeout=20) == 0


def client(url, name):
    return openai.OpenAI(base_url=url + "/v1", api_key=f"{name}-secret", max_retries=0)


def ask(client):
    return client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}], max_tokens=2)


def test_a_wrong_key_is_an_authentication_error(url):
    with pytest.raises(openai.AuthenticationError) as refused:
        ask(client(url, "nobody"))
    assert refused.value.code == "invalid_api_key" and refused.value.type == "authentication_error"
    assert ask(client(url, "open")).choices


def test_a_limit_is_a_rate_limit_error_that_says_when(url):
    counted = client(url, "counted")
    raw = counted.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], max_tokens=2
    )
    assert (raw.headers["x-ratelimit-limit-requests"], raw.headers["x-ratelimit-remaining-requests"]) == ("2", "1")
    ask(counted)
    with pytest.raises(openai.RateLimitError) as refused:
        ask(counted)
    assert refused.value.code == "rate_limit_exceeded" and "requests_per_minute" in refused.value.message
    assert 1 <= int(refused.value.response.headers["retry-after"]) <= 30


def test_models_are_those_that_are_allowed(url):
    assert [model.id for model in client(url, "open").models.list()] == [MODEL]
    assert list(client(url, "narrow").models.list()) == []
    with pytest.raises(openai.NotFoundError) as unknown:
        ask(client(url, "narrow"))
    assert unknown.value.code == "model_not_found" and MODEL not in unknown.value.message.split("served now")[1]
