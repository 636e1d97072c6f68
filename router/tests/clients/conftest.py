"""Three simulated workers and a router before them, all real processes, for the whole session."""

import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "engine-adapters/tests/support"))
from ports import free_ports

KVLANE = pathlib.Path(os.environ.get("KVLANE", ROOT / "target/debug/kvlane"))
WORKER = pathlib.Path(os.environ.get("KVLANE_WORKER", ROOT / "target/debug/kvlane-worker"))
MODEL = "kvlane-small"


def get(url):
    with urllib.request.urlopen(url, timeout=5) as response:
        return response.read().decode()


class Bed:
    """What a client may want to know."""

    def __init__(self, url, admin, workers):
        self.url, self.admin, self.workers = url, admin, workers

    def metric(self, series):
        lines = [line for line in get(self.url + "/metrics").splitlines() if line.startswith(series)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def in_flight(self):
        workers = json.loads(get(self.admin + "/admin/workers"))["workers"]
        return sum(load["requests"] for worker in workers for load in worker["load"])


@pytest.fixture(scope="session")
def bed():
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DYN_", "NATS_"))}
    environment["RUST_LOG"] = "warn"
    processes, urls = [], []
    for _ in range(3):
        port, events, replay = free_ports(3)
        urls.append(f"http://127.0.0.1:{port}")
        flags = ["--engine", "instant", "--block-size", "32", "--fault-switches"]
        ports = ["--port", str(port), "--events-port", str(events), "--replay-port", str(replay)]
        processes.append(subprocess.Popen([WORKER, *flags, *ports], env=environment))
    port, admin = free_ports(2)
    flags = ["--host", "127.0.0.1", "--port", str(port), "--admin-port", str(admin), "--decision-headers", "true"]
    flags += ["--set", "workers.probe_interval_ms=100", "--set", "server.drain_wait_s=0"]
    for url in urls:
        flags += ["--worker", url]
    processes.append(subprocess.Popen([KVLANE, *flags], env=environment))
    bed = Bed(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin}", urls)
    for _ in range(500):
        try:
            if json.loads(get(bed.url + "/health"))["workers"]["ready"] == 3 and get(bed.url + "/ready"):
                break
        except (OSError, urllib.error.HTTPError):
            assert all(process.poll() is None for process in processes), "something did not start"
        time.sleep(0.02)
    else:
        raise AssertionError("the router is not ready")
    yield bed
    for process in processes[::-1]:
        process.terminate()
    for process in processes[::-1]:
        assert process.wait(timeout=20) == 0, "everybody stops cleanly on SIGTERM"
