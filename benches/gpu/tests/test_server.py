"""The engine as a process: what a client, a subscriber and the router see of it. Its model is the ledger; no GPU is needed."""

import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import time

import msgpack
import pytest
import requests
import zmq

HERE = pathlib.Path(__file__).resolve().parents[1]
ROOT = HERE.parents[1]
KVLANE = ROOT / "target/debug/kvlane"
MODEL = ROOT / "engine-adapters/models/kvlane-small"


def until(what, condition, seconds=30):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"{what} did not come about in {seconds} s"
        time.sleep(0.02)
    return found


def answers(url):
    try:
        return requests.get(url, timeout=2).ok
    except requests.RequestException:
        return False


def ports(count):
    """A row of free ones."""
    for first in range(23000 + os.getpid() % 4000, 29000, 10):
        sockets = [socket.socket() for _ in range(count)]
        try:
            for at, one in enumerate(sockets):
                one.bind(("", first + at))
            return first
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
    raise AssertionError("no free ports")


class Engine:
    def __init__(self, folder, *flags):
        self.port = ports(3)
        self.url = f"http://127.0.0.1:{self.port}"
        self.steps = folder / f"steps-{self.port}.jsonl"
        command = [sys.executable, "-m", "engine", "--shape", "ledger", "--port", self.port, "--events-port", self.port + 1,
                   "--log", self.steps, "--kv-blocks", "400", "--slots", "4", *flags]  # fmt: skip
        self.process = subprocess.Popen([*map(str, command)], cwd=HERE, start_new_session=True)
        try:
            until("the engine", lambda: self.process.poll() is not None or answers(f"{self.url}/health"))
            assert self.process.poll() is None, f"the engine ended with {self.process.returncode}"
        except AssertionError:
            self.stop()
            raise

    def ask(self, content, **more):
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 8, **more}
        return requests.post(f"{self.url}/v1/chat/completions", json=body, timeout=30)

    def metric(self, name):
        text = requests.get(f"{self.url}/metrics", timeout=5).text
        return float(next(line for line in text.splitlines() if line.startswith(name)).rsplit(" ", 1)[1])

    def stop(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait(10)


@pytest.fixture
def engine(tmp_path):
    one = Engine(tmp_path)
    yield one
    one.stop()


LONG = "one two three four five six seven eight nine ten " * 20


def test_an_answer_is_the_same_streamed_and_whole_and_says_what_was_cached(engine):
    first = engine.ask(LONG).json()
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    again = engine.ask(LONG).json()
    assert again["choices"][0]["message"] == first["choices"][0]["message"]
    prompt = again["usage"]["prompt_tokens"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == (prompt - 1) // 32 * 32
    streamed = engine.ask(LONG, stream=True, stream_options={"include_usage": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    lines = [line[6:] for line in streamed.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    *chunks, usage = map(json.loads, lines[:-1])
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    assert text == first["choices"][0]["message"]["content"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[-2:]] == [None, "length"]
    assert usage["choices"] == [] and usage["usage"] == again["usage"]
    # Sent back with the next question, the answer's tokens are the ones that are cached.
    messages = [{"role": "user", "content": LONG}, {"role": "assistant", "content": text}, {"role": "user", "content": "on"}]
    tokens = lambda body: requests.post(f"{engine.url}/tokenize", json=body).json()["tokens"]
    assert tokens({"messages": messages})[: prompt] == tokens({"messages": messages[:1]})


def test_completions_take_texts_and_tokens(engine):
    ask = lambda prompt: requests.post(f"{engine.url}/v1/completions", json={"prompt": prompt, "max_tokens": 4}).json()
    text = ask("hello there")
    tokens = requests.post(f"{engine.url}/tokenize", json={"prompt": "hello there"}).json()["tokens"]
    assert ask(tokens)["choices"] == text["choices"]
    assert text["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(
    "body, status, says",
    [
        ("{", 400, "no JSON"),
        ("[]", 400, "no object"),
        ('{"model": "other", "messages": []}', 404, "`other` does not exist"),
        ("{}", 400, "`messages` is missing"),
        ('{"messages": [{"role": "user", "content": ["a"]}]}', 400, "`messages` is missing"),
        ('{"messages": [1]}', 400, "`messages` is missing"),
        ('{"messages": [{"role": "user", "content": "a"}], "max_tokens": -1}', 400, "`max_tokens` is -1"),
        (json.dumps({"messages": [{"role": "user", "content": "word " * 20000}]}), 400, "expected 1 to 8191"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_sentence(engine, body, status, says):
    answer = requests.post(f"{engine.url}/v1/chat/completions", data=body)
    assert answer.status_code == status
    assert says in answer.json()["error"]["message"]


@pytest.mark.parametrize("prompt", [[-1] * 40, [1 << 40], [4096 + 5], ["a"], [True], []])
def test_tokens_that_are_none_are_refused(engine, prompt):
    for path in ("v1/completions", "tokenize"):
        answer = requests.post(f"{engine.url}/{path}", json={"prompt": prompt})
        assert answer.status_code == 400 and "`prompt`" in answer.json()["error"]["message"]


def test_a_cache_has_room_for_the_longest_prompt():
    command = [sys.executable, "-m", "engine", "--shape", "ledger", "--kv-blocks", "255"]
    ended = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "--kv-blocks 255 hold 8160 tokens, expected room for --max-model-len 8192" in ended.stderr


def test_whoever_stops_waiting_for_a_reset_does_no_harm(tmp_path):
    engine = Engine(tmp_path, "--step-ms", "50")
    try:
        body = {"messages": [{"role": "user", "content": LONG}], "max_tokens": 400, "stream": True}
        with requests.post(f"{engine.url}/v1/chat/completions", json=body, stream=True, timeout=30) as answer:
            chunks = answer.iter_content(16)
            next(chunks)
            with pytest.raises(requests.exceptions.ReadTimeout):
                requests.post(f"{engine.url}/reset_prefix_cache", timeout=0.3)
        assert requests.post(f"{engine.url}/reset_prefix_cache", timeout=30).status_code == 200
        assert engine.ask(LONG).json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    finally:
        engine.stop()


def test_whoever_goes_away_frees_his_place(tmp_path):
    engine = Engine(tmp_path, "--step-ms", "20")
    try:
        body = {"messages": [{"role": "user", "content": LONG}], "max_tokens": 4000}
        url = f"{engine.url}/v1/chat/completions"
        with requests.post(url, json={**body, "stream": True}, stream=True, timeout=30) as answer:
            chunks = answer.iter_content(16)
            next(chunks)
            assert engine.metric("vllm:num_requests_running") == 1
        until("its place", lambda: engine.metric("vllm:num_requests_running") == 0)
        with pytest.raises(requests.exceptions.ReadTimeout):
            requests.post(url, json=body, timeout=0.5)
        until("its place", lambda: engine.metric("vllm:num_requests_running") == 0)
    finally:
        engine.stop()


def test_answers_end_by_themselves_where_they_are_told_to(tmp_path):
    engine = Engine(tmp_path, "--answer-tokens", "20,5")
    try:
        lengths = set()
        for n in range(12):
            answer = engine.ask(f"question {n}", max_tokens=100).json()
            assert answer["choices"][0]["finish_reason"] == "stop"
            lengths.add(answer["usage"]["completion_tokens"])
        assert len(lengths) > 3 and max(lengths) < 60
        assert engine.ask("question 1", max_tokens=100, ignore_eos=True).json()["usage"]["completion_tokens"] == 100
    finally:
        engine.stop()


def test_events_are_published_numbered_and_can_be_had_again(engine):
    source = requests.get(f"{engine.url}/kv_event_sources").json()["0"]
    assert source["endpoint"] == f"tcp://*:{engine.port + 1}" and source["topic"] == "kv-events"
    context = zmq.Context.instance()
    heard = context.socket(zmq.SUB)
    heard.setsockopt(zmq.RCVTIMEO, 10_000)
    heard.connect(f"tcp://127.0.0.1:{engine.port + 1}")
    heard.subscribe("kv-events")
    # A subscription takes a moment to arrive; questions are asked until it has.
    def published():
        engine.ask(f"{time.monotonic()} {LONG}")
        return heard.poll(200)

    until("events", published)
    # The first may be of a request that was under way.
    opens = lambda events: events[-1]["type"] == "BlockStored" and events[-1]["parent_block_hash"] is None
    while True:
        topic, number, payload = heard.recv_multipart()
        at, events, rank = msgpack.unpackb(payload)
        if opens(events):
            break
        published()
    assert topic == b"kv-events" and len(number) == 8
    assert abs(at - time.time()) < 60 and rank == 0
    stored = events[-1]
    assert stored["type"] == "BlockStored" and stored["block_size"] == 32
    assert len(stored["token_ids"]) == 32 * len(stored["block_hashes"]) and stored["parent_block_hash"] is None
    asks = context.socket(zmq.DEALER)
    asks.setsockopt(zmq.RCVTIMEO, 10_000)
    asks.connect(f"tcp://127.0.0.1:{engine.port + 2}")
    asks.send_multipart((b"", struct.pack(">q", 0)))
    replayed = []
    while (frame := asks.recv_multipart())[-2] != struct.pack(">q", -1):
        replayed.append(frame)
    assert frame == [b"", b"", struct.pack(">q", -1), b""]
    assert [struct.unpack(">q", frame[2])[0] for frame in replayed] == list(range(len(replayed)))
    assert replayed[struct.unpack(">q", number)[0]][-1] == payload
    # An emptied cache is told of with the next step, as vLLM does.
    assert requests.post(f"{engine.url}/reset_prefix_cache").status_code == 200
    assert engine.ask(LONG).json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    kinds = []
    while "AllBlocksCleared" not in kinds:
        kinds = [event["type"] for event in msgpack.unpackb(heard.recv_multipart()[2])[1]]
    assert kinds[0] == "AllBlocksCleared" and "BlockStored" in kinds


def test_every_step_is_logged(engine):
    engine.ask(LONG)
    steps = until("the log", lambda: engine.steps.exists() and engine.steps.read_text().count("\n") >= 1)
    assert steps
    engine.stop()
    engine.stop = lambda: None
    lines = [json.loads(line) for line in engine.steps.read_text().splitlines()]
    assert lines[0]["prefill_tokens"] > 100 and lines[0]["batch"] == 0
    assert all(line["ms"] > 0 for line in lines)


def test_the_router_expects_what_the_engine_reports(tmp_path):
    """Two replicas behind Kvlane: conversations follow their cache, and the index never expects too much."""
    assert KVLANE.exists(), f"{KVLANE} is not there, expected `cargo build --workspace --bins` before"
    one = Engine(tmp_path, "--step-ms", "1")
    try:
        behind_the_router([one, Engine(tmp_path, "--step-ms", "1")])
    finally:
        one.stop()


def behind_the_router(engines):
    port = ports(2)
    workers = [word for engine in engines for word in ("--worker", f"url={engine.url},slots=4")]
    command = [KVLANE, "--host", "127.0.0.1", "--port", port, "--admin-port", port + 1, "--model-path", MODEL, *workers]
    router = subprocess.Popen([*map(str, command), "--log-level", "warn"])
    try:
        admin = f"http://127.0.0.1:{port + 1}"
        until("the router", lambda: answers(f"{admin}/ready"))
        feeds = lambda: [worker["events"]["ranks"] for worker in requests.get(f"{admin}/admin/workers").json()["workers"]]
        until("its feeds", lambda: all(ranks and ranks[0]["state"] == "live" for ranks in feeds()))
        cached = prompt = 0
        for conversation in range(6):
            messages = []
            for turn in range(4):
                messages.append({"role": "user", "content": f"{conversation} {LONG if turn == 0 else 'go on'}"})
                body = {"model": "kvlane-small", "messages": messages, "max_tokens": 40}
                answer = requests.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, timeout=60).json()
                messages.append(answer["choices"][0]["message"])
                usage = answer["usage"]
                prompt += usage["prompt_tokens"]
                cached += usage["prompt_tokens_details"]["cached_tokens"]
        text = requests.get(f"{admin}/metrics").text
        total = lambda name: sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))
        assert total("kvlane_overlap_reported_tokens_total") == cached
        # Events of the last blocks may come after the next question.
        assert 0.9 * cached < total("kvlane_overlap_predicted_tokens_total") <= cached
        # Of four turns only the first is new.
        assert cached > 0.6 * prompt
    finally:
        router.terminate()
        router.wait(20)
        for engine in engines:
            engine.stop()
