"""Containers as processes of this machine: the arguments and variables are the manifests' own.

Every pod or service has a loopback address of its own. Ports are all moved by the same number, because somebody else may have them.
"""

import contextlib
import json
import pathlib
import random
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

from manifests import KVLANE_BIN, PROGRAMS, tool

PORTS = (3000, 4222, 5557, 5558, 8000, 8090, 8222)


class Stack:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.addresses = {}
        self.processes = {}
        net = random.randrange(2, 250)
        self.address_of = lambda number: f"127.{net}.0.{number}"
        self.shift = self.free_shift()

    def free_shift(self):
        """Ports that nobody listens at, on any address."""
        for _ in range(100):
            shift = random.randrange(10_000, 40_000)
            with contextlib.ExitStack() as sockets, contextlib.suppress(OSError):
                for port in PORTS:
                    sockets.enter_context(socket.create_server(("0.0.0.0", port + shift)))
                return shift
        raise AssertionError("no free ports")

    def address(self, name):
        return self.addresses.setdefault(name, self.address_of(len(self.addresses) + 1))

    def translated(self, text, own):
        """Names of others become their addresses, "here" and "everywhere" one's own."""
        text = re.sub(r"\b(0\.0\.0\.0|127\.0\.0\.1)\b", own, text)
        for name in sorted(self.addresses, key=len, reverse=True):
            text = re.sub(rf"(?<=//){re.escape(name)}(?=:)", self.addresses[name], text)
        return re.sub(rf"\b({'|'.join(map(str, PORTS))})\b", lambda port: str(int(port[1]) + self.shift), text)

    def start(self, name, of, program, arguments, environment):
        """Starts a program that listens at the address of `of`."""
        own = self.address(of)
        path = KVLANE_BIN / program if program in PROGRAMS else tool(program)
        env = {key: self.translated(value, own) for key, value in environment.items()}
        if program == "kvlane":
            # It listens everywhere by default.
            env.setdefault("DYN_HTTP_HOST", own)
            env.setdefault("DYN_HTTP_PORT", str(8000 + self.shift))
            env.setdefault("KVLANE_ADMIN_PORT", str(8090 + self.shift))
        log = (self.folder / f"{name}.log").open("w", encoding="utf-8")
        command = [str(path), *(self.translated(argument, own) for argument in arguments)]
        self.processes[name] = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)

    def url(self, name, port, path):
        return f"http://{self.addresses[name]}:{port + self.shift}{path}"

    def get(self, name, port, path, body=None):
        """Status and text; 0 when nobody answers."""
        try:
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(self.url(name, port, path), data, {"content-type": "application/json"})
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def eventually(self, question, seconds=40):
        """The first answer that is true. A process that ended meanwhile is the likeliest reason for none."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            answer = question()
            if answer:
                return answer
            time.sleep(0.2)
        over = {name: process.poll() for name, process in self.processes.items() if process.poll() is not None}
        logs = "\n".join(f"{path.name}: {path.read_text(encoding='utf-8')[-600:]}" for path in self.folder.glob("*.log"))
        raise AssertionError(f"it did not come to that; ended: {over}\n{logs}")

    def stop(self, name):
        """How it ends when it is told to, and how long that takes."""
        began, process = time.monotonic(), self.processes.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(timeout=60), time.monotonic() - began
        finally:
            process.kill()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            process.kill()
            process.wait()


def works(stack, router, page, nats):
    """Everything a deployment of three workers over NATS is for."""
    assert stack.eventually(lambda: stack.get(nats, 8222, "/healthz")[0] == 200)
    assert stack.eventually(lambda: stack.get(router, 8000, "/ready")[0] == 200)
    workers = stack.eventually(lambda: ready(stack, router, 3))
    for worker in workers:
        assert (worker["events"]["source"], worker["events"]["refused"]) == ("nats", None)
        assert (worker["block_size"], worker["slots"]) == (32, 64)
    question = {"messages": [{"role": "user", "content": "A word for each of these. " * 40}], "max_tokens": 4}
    for _ in range(2):
        status, answer = stack.get(router, 8000, "/v1/chat/completions", question)
        assert status == 200, answer
    assert json.loads(answer)["usage"]["prompt_tokens_details"]["cached_tokens"] > 0, "the second went where the first was"
    # The page speaks to the router's admin listener for its visitors.
    assert stack.eventually(lambda: stack.get(page, 3000, "/")[0] == 200)
    status, answer = stack.get(page, 3000, "/api/mode")
    assert (status, json.loads(answer)["mode"]) == (200, "kv")
    status, answer = stack.get(page, 3000, "/api/run/start", {"concurrency": 2})
    assert status == 200, answer
    assert stack.eventually(lambda: "loadgen_ttft_all_seconds_count" in stack.get(page, 3000, "/metrics")[1])


def ready(stack, router, count):
    status, answer = stack.get(router, 8090, "/admin/workers")
    workers = [worker for worker in json.loads(answer)["workers"] if worker["state"] == "ready"] if status == 200 else []
    return workers if len(workers) == count and all(w["events"] and w["events"]["caught_up"] for w in workers) else None

