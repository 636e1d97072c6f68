"""A demo, a deployment in trouble, and a real Prometheus that scrapes both with the configuration that is shipped."""

import concurrent.futures
import contextlib
import http.server
import itertools
import json
import math
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "engine-adapters/tests/support"))
from ports import free_ports

GRAFANA = ROOT / "deploy/grafana"
PROMETHEUS = ROOT / "deploy/prometheus"
KVLANE_BIN = pathlib.Path(os.environ.get("KVLANE_BIN", ROOT / "target/debug"))

# Namespaces the two deployments are scraped under.
WELL, TROUBLED = "dynamo-workload", "troubled"


def prometheus_tool(name):
    """Where `prometheus` or `promtool` is: PROMETHEUS_BIN, the repository's own, or the path."""
    places = [os.environ.get("PROMETHEUS_BIN"), ROOT / ".tools/prometheus/usr/bin"]
    found = shutil.which(name, path=os.pathsep.join(str(place) for place in places if place)) or shutil.which(name)
    assert found, f"{name} is not there, expected in PROMETHEUS_BIN, .tools/prometheus/usr/bin or on the path"
    return found


def promtool(*arguments, cwd=PROMETHEUS):
    command = [prometheus_tool("promtool"), *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


# ---- What boards and rules ask ---------------------------------------------------------------------------------------


def board(name):
    return json.loads((GRAFANA / name).read_text(encoding="utf-8"))


def panels(made):
    """All panels but rows, also those folded into one."""
    for one in made["panels"]:
        yield from one["panels"] if one["type"] == "row" else [one]


def expressions(made):
    """Every query of a board, with where it stands."""
    for one in panels(made):
        for each in one["targets"]:
            yield f"{made['uid']}: {one['title']} {each['refId']}", each["expr"]
    for one in made["annotations"]["list"]:
        yield f"{made['uid']}: {one['name']}", one["expr"]


def substituted(expr, namespace=WELL):
    """As Grafana would, with every variable at its default."""
    values = {
        "namespace": namespace, "router": ".*", "concurrency": "60", "workload": "recorded", "__rate_interval": "1m",
    }
    return re.sub(r"\$(\w+)", lambda match: values[match[1]], expr)


# ---- Processes -------------------------------------------------------------------------------------------------------


def free_base(offsets):
    """A port such that it and those so far above it are free. Below the ones that connections take."""
    for base in itertools.chain(range(18000, 30000, 37), range(10000, 18000, 41)):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for offset in offsets:
                stack.enter_context(socket.socket()).bind(("127.0.0.1", base + offset))
            return base
    raise AssertionError("no free ports")


def get(url, timeout=5):
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return answer.read().decode()


def post(url, body, timeout=10):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return answer.read().decode()


class Processes:
    """What was started, each in a group of its own, so that its children go with it."""

    def __init__(self, logs):
        self.logs, self.running = logs, []
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("DYN_", "NATS_", "KVLANE_", "DEMO_", "OTEL_"))
            and name not in ("PORT", "ADMIN_PORT", "WORKER_PORT", "PAGE_PORT", "ROUTER_MODE", "PROMETHEUS_URL")
        }
        # Children leave their logs here too.
        self.environment["TMPDIR"] = str(logs)

    def start(self, name, program, *arguments):
        log = (self.logs / f"{name}.log").open("w")
        command = [str(program), *map(str, arguments)]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=self.environment,
            start_new_session=True, cwd=self.logs,
        )
        log.close()
        self.running.append((name, process))
        return process

    def until(self, what, holds, seconds):
        """Polls until something is so. Fails at once when a process is gone."""
        end = time.monotonic() + seconds
        while True:
            with contextlib.suppress(OSError, urllib.error.HTTPError):
                if holds():
                    return
            for name, process in self.running:
                assert process.poll() is None, f"{name} ended:\n{self.log(name)}"
            assert time.monotonic() < end, f"{what}: not within {seconds} s\n" + "\n".join(map(self.log, dict(self.running)))
            time.sleep(0.1)

    def log(self, name):
        return f"--- {name}\n" + (self.logs / f"{name}.log").read_text(errors="replace")[-1500:]

    def stop(self):
        for _, process in reversed(self.running):
            if process.poll() is None:
                process.terminate()
        for _, process in reversed(self.running):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
            # Whatever is left of its group.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=5)


class Demo:
    """`kvlane-load demo`: three simulated engines, the router, load and the page."""

    def __init__(self, processes):
        self.workers = free_base([offset + n for offset in (0, 1000, 2000) for n in range(3)])
        self.router, self.admin, self.page = free_ports(3)
        flags = {
            "--speed": 8, "--concurrency": 12, "--worker-port": self.workers, "--port": self.router,
            "--admin-port": self.admin, "--page-port": self.page,
            # Ends by itself should whoever started it be killed.
            "--seconds": 300,
        }
        processes.start("demo", KVLANE_BIN / "kvlane-load", "demo", *itertools.chain(*flags.items()))
        processes.until("the demo's page", lambda: get(f"http://127.0.0.1:{self.page}/metrics"), 60)

    def targets(self):
        workers = [{"targets": [f"127.0.0.1:{self.workers + n}"], "labels": {"pod": f"worker-{n}"}} for n in range(3)]
        return {"router": [{"targets": [f"127.0.0.1:{self.router}"]}], "workers": workers,
                "load": [{"targets": [f"127.0.0.1:{self.page}"]}]}


class Liar(http.server.ThreadingHTTPServer):
    """Stands before an engine and says that nothing was cached."""

    daemon_threads = True

    def __init__(self, engine):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def pass_on(self):
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                request = urllib.request.Request(
                    engine + self.path, body or None, {"content-type": "application/json"}, method=self.command
                )
                try:
                    answer = urllib.request.urlopen(request, timeout=30)
                except urllib.error.HTTPError as error:
                    answer = error
                except OSError:
                    # The engine is gone, and this with it.
                    self.close_connection = True
                    return
                said = re.sub(rb'"cached_tokens":\s*\d+', b'"cached_tokens":0', answer.read())
                self.send_response(answer.status)
                self.send_header("content-type", answer.headers.get("content-type", "application/json"))
                self.send_header("content-length", str(len(said)))
                self.end_headers()
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(said)

            do_GET = do_POST = pass_on

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        """A client that went away is none."""


class Trouble:
    """A router with three speculating engines: one lies about its cache, one fails, of one no events come.

    They have a slot each and twelve clients, so most requests wait and some are refused; half are placed by load alone.
    """

    def __init__(self, processes):
        self.workers = free_base([offset + n for offset in (0, 1000, 2000) for n in range(3)])
        flags = {
            "--workers": 3, "--engine": "h200-llama70b-eagle3", "--speed": 5, "--max-batch": 2, "--port": self.workers,
            "--events-port": self.workers + 1000, "--replay-port": self.workers + 2000,
        }
        processes.start("engines", KVLANE_BIN / "kvlane-worker", "--fault-switches", *itertools.chain(*flags.items()))
        processes.until("engines", lambda: get(f"http://127.0.0.1:{self.workers + 2}/health") or True, 30)
        self.liar = Liar(f"http://127.0.0.1:{self.workers}")
        self.router, self.admin, nobody = free_ports(3)

        def spec(name, port, n, events=None):
            publisher = f"tcp://127.0.0.1:{events or self.workers + 1000 + n}"
            replay = f"tcp://127.0.0.1:{self.workers + 2000 + n}"
            return f"url=http://127.0.0.1:{port},name={name},slots=1,events={publisher},replay={replay}"

        processes.start(
            "router", KVLANE_BIN / "kvlane", "--host", "127.0.0.1", "--port", self.router, "--admin-port", self.admin,
            "--worker", spec("liar", self.liar.server_port, 0),
            "--worker", spec("failing", self.workers + 1, 1),
            "--worker", spec("unheard", self.workers + 2, 2, events=nobody),
            "--holdout", "0.5",
            "--set", "routing.overflow=0", "--set", "routing.queue_max=4", "--set", "proxy.breaker_failures=2",
            "--set", "server.drain_wait_s=0", "--set", "server.drain_timeout_s=1",
        )
        processes.until("three workers", self.all_ready, 30)
        post(f"http://127.0.0.1:{self.workers + 1}/faults", {"status": 500})
        self.going = True
        self.clients = concurrent.futures.ThreadPoolExecutor(12)
        for n in range(12):
            self.clients.submit(self.ask, n)

    def all_ready(self):
        workers = json.loads(get(f"http://127.0.0.1:{self.admin}/admin/workers"))["workers"]
        return sum(worker["state"] == "ready" for worker in workers) == 3

    def ask(self, client):
        """The same few documents again and again, so that something is always said to be cached."""
        url = f"http://127.0.0.1:{self.router}/v1/chat/completions"
        for turn in itertools.count():
            if not self.going:
                return
            document = " ".join(f"line {line} of document {client % 3}" for line in range(60))
            body = {"stream": True, "max_tokens": 24, "messages": [{"role": "user", "content": f"{document} {turn}"}]}
            if turn % 40 == 39:
                body["model"] = "nobody-serves-this"
            with contextlib.suppress(OSError, http.client.HTTPException):
                post(url, body, timeout=30)
            time.sleep(0.1)

    def targets(self):
        labels = {"namespace": TROUBLED}
        workers = [
            {"targets": [f"127.0.0.1:{self.workers + n}"], "labels": {**labels, "pod": f"engine-{n}"}} for n in range(3)
        ]
        return {"router": [{"targets": [f"127.0.0.1:{self.router}"], "labels": {**labels, "pod": "troubled-router"}}],
                "workers": workers}

    def stop(self):
        self.going = False
        self.clients.shutdown(wait=False, cancel_futures=True)
        self.liar.shutdown()


class Prometheus:
    """A real one: the configuration and rules as they are shipped, other targets beside them."""

    def __init__(self, processes, home, targets):
        shutil.copytree(PROMETHEUS, home, ignore=shutil.ignore_patterns("targets", "tests"))
        (home / "targets").mkdir()
        for job, lists in targets.items():
            # JSON is YAML, and what the configuration looks for ends in .yml.
            (home / f"targets/{job}.yml").write_text(json.dumps(lists))
        [port] = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self.started = time.time()
        processes.start(
            "prometheus", prometheus_tool("prometheus"), f"--config.file={home / 'prometheus.yml'}",
            f"--storage.tsdb.path={home / 'data'}", f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
        )
        processes.until("Prometheus", lambda: get(f"{self.url}/-/ready"), 30)

    def ask(self, path, **parameters):
        query = urllib.parse.urlencode(parameters)
        try:
            answer = json.loads(get(f"{self.url}/api/v1/{path}?{query}", timeout=20))
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error
        assert answer["status"] == "success", answer
        return answer["data"]

    def now(self, expr):
        return self.ask("query", query=expr)["result"]

    def has_data(self, expr):
        """Whether it ever came to a number since the start; one that is none (0 / 0) does not count."""
        found = self.ask("query_range", query=expr, start=self.started, end=time.time(), step=5)["result"]
        return any(math.isfinite(float(value)) for one in found for _, value in one["values"])

    def names(self):
        return set(self.ask("label/__name__/values"))


class Stack:
    """Everything, started and stopped as one."""

    def __init__(self, home):
        logs = home / "logs"
        logs.mkdir()
        self.processes, self.trouble = Processes(logs), None
        try:
            self.demo = Demo(self.processes)
            self.trouble = Trouble(self.processes)
            targets = {
                job: self.demo.targets().get(job, []) + self.trouble.targets().get(job, [])
                for job in ("router", "workers", "load")
            }
            self.prometheus = Prometheus(self.processes, home / "prometheus", targets)
        except BaseException:
            self.stop()
            raise

    def stop(self):
        if self.trouble:
            self.trouble.stop()
        self.processes.stop()
