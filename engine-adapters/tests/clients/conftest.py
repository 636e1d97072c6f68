"""Starts the real binary on free ports and hands its addresses to the tests."""

import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "engine-adapters/tests/support"))
from ports import free_ports

BINARY = pathlib.Path(os.environ.get("KVLANE_WORKER", ROOT / "target/debug/kvlane-worker"))


class Worker:
    def __init__(self, *flags):
        self.port, self.events_port, self.replay_port = free_ports(3)
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = subprocess.Popen(
            [BINARY, "--engine", "instant", "--block-size", "32", "--port", str(self.port),
             "--events-port", str(self.events_port), "--replay-port", str(self.replay_port), *flags],
            env={**os.environ, "RUST_LOG": "warn"},
        )
        for _ in range(500):
            try:
                urllib.request.urlopen(self.url + "/health", timeout=1)
                return
            except OSError:
                assert self.process.poll() is None, "the worker did not start"
                time.sleep(0.02)
        raise AssertionError("the worker does not answer")

    def post(self, path, body):
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=20) as response:
            text = response.read()
            return json.loads(text) if text else None

    def complete(self, prompt, **more):
        return self.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, **more})


@pytest.fixture
def start():
    workers = []

    def start(*flags):
        workers.append(Worker(*flags))
        return workers[-1]

    yield start
    for worker in workers:
        worker.process.terminate()
    for worker in workers:
        assert worker.process.wait(timeout=20) == 0, "the worker stops cleanly on SIGTERM"
