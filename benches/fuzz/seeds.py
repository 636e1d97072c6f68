"""Writes what the tests have recorded and made up as seeds for the fuzz targets: python3 seeds.py [FOLDER]."""

import base64
import json
import pathlib
import re
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FIXTURES = ROOT / "engine-adapters/tests/fixtures"
VLLM = FIXTURES / "vllm"
CORPUS = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "corpus"
# How a stream or an answer is cut: how many lengths, and the lengths less one.
CUTS = [b"\x00", b"\x03\x00\x06\x31", b"\x01\x1f", b"\x07\x01\x02\x03\x05\x08\x0d\x15"]


def seed(target, name, data):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    data = data.encode() if isinstance(data, str) else data
    (folder / re.sub(r"[^A-Za-z0-9.-]+", "-", name)).write_bytes(data)


def cut_seed(target, name, data):
    data = data.encode() if isinstance(data, str) else data
    for number, cuts in enumerate(CUTS):
        seed(target, f"{name}-{number}", cuts + data)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def texts_of(source, pattern):
    """Texts between quotes in our own code and tests."""
    return re.findall(pattern, (ROOT / source).read_text())


def pack(value):
    """As much msgpack as the seeds need."""
    if value is None:
        return b"\xc0"
    if isinstance(value, int):
        return b"\xcf" + struct.pack(">Q", value)
    if isinstance(value, str):
        return b"\xd9" + bytes([len(value)]) + value.encode()
    if isinstance(value, bytes):
        return b"\xc5" + struct.pack(">H", len(value)) + value
    if isinstance(value, list):
        return bytes([0x90 | len(value)]) + b"".join(map(pack, value))
    return bytes([0x80 | len(value)]) + b"".join(pack(key) + pack(item) for key, item in value.items())


def events():
    for record in lines(VLLM / "struct-encodings-by-version.jsonl"):
        for form in ("payload_int_b64", "payload_bytes_hash_b64"):
            seed("vllm_batch", f"{record['vllm_version']}-{form}", base64.b64decode(record[form]))
    for path in sorted(VLLM.glob("*-events.jsonl")):
        heard = [record for record in lines(path) if record["kind"] == "zmq"]
        for number, record in enumerate(heard):
            seed("vllm_batch", f"{path.stem}-{number}", base64.b64decode(record["frames_b64"][-1]))
    sglang = json.loads((VLLM / "sglang-kv_events.SYNTHETIC.json").read_text())
    seed("vllm_batch", "sglang", base64.b64decode(sglang["payload_b64"]))
    trtllm = json.loads((VLLM / "trtllm-kv_cache_events.SYNTHETIC.json").read_text())
    for event in trtllm["events"]:
        seed("trtllm_events", str(event["event_id"]), json.dumps([event]))
    seed("trtllm_events", "all", "\n".join(json.dumps([event]) for event in trtllm["events"]))
    data = {"stored": {"parent_hash": None, "blocks": [{"block_hash": 11, "tokens_hash": 22, "mm_extra_info": None}]}}
    for name, data in {"stored": data, "removed": {"removed": {"block_hashes": [11, 12]}}, "cleared": "cleared"}.items():
        event = {"worker_id": 1, "storage_tier": "device", "event": {"event_id": 7, "dp_rank": 0, "data": data}}
        payload = pack([event])
        envelope = {"publisher_id": 1, "sequence": 0, "published_at": 5, "topic": "kv-events", "payload": payload}
        for form, said in {"json": json.dumps(event).encode(), "payload": payload, "envelope": pack(envelope)}.items():
            seed("dynamo_message", f"{name}-{form}", said)
            seed("nats_wire", f"{name}-{form}", said + said)


def requests():
    """What was sent to engines, and what they answered."""
    bodies, n = [], 0
    for record in lines(VLLM / "http-request-plane.jsonl"):
        body = record.get("request_body")
        if isinstance(body, dict):
            bodies.append((record["name"], body))
        answer = record.get("body")
        if isinstance(answer, (dict, list, str)) and answer:
            text = answer if isinstance(answer, str) else json.dumps(answer)
            seed("engine_facts", record["name"], text)
            fields = "".join(f"{name}: {value}\r\n" for name, value in (record.get("headers") or {}).items())
            cut_seed("http1_answer", record["name"], f"HTTP/1.1 {record['status']} OK\r\n{fields}\r\n{text}"[:3500])
    for path in sorted(VLLM.glob("*-events.jsonl")):
        for record in lines(path):
            if record["kind"] == "http" and isinstance(record.get("body"), dict):
                bodies.append((f"{path.stem}-{record['step']}", record["body"]))
            if record["kind"] == "meta":
                seed("engine_facts", f"{path.stem}-models", json.dumps(record["models"]))
                seed("engine_facts", f"{path.stem}-sources", json.dumps(record["kv_event_sources"]))
    for folder in ("llama", "mistral", "qwen"):
        golden = json.loads((FIXTURES / "templates" / folder / "golden.json").read_text())
        template = json.loads((FIXTURES / "templates" / folder / "tokenizer_config.json").read_text())["chat_template"]
        if not isinstance(template, str):
            template = template[0]["template"]
        seed("chat_template", folder, template)
        for number, chat in enumerate(golden["chats"]):
            body = {"messages": chat["messages"], "chat_template_kwargs": chat["kwargs"]}
            body.update({key: chat[key] for key in ("tools", "documents") if chat.get(key)})
            bodies.append((f"{folder}-{number}", body))
            if number < 8:
                seed("chat_template", f"{folder}-{number}", f"{template}\0{json.dumps(chat['messages'])}")
        for number, text in enumerate(golden["texts"]):
            bodies.append((f"{folder}-text-{number}", {"prompt": text["text"]}))
    for text in texts_of("engine-adapters/src/model/tests.rs", r'check\(\s*"(.*?)",'):
        n += 1
        seed("chat_template", f"test-{n}", text.encode().decode("unicode_escape").encode("latin-1", "ignore"))
    edits = {"stream": True, "stream_options": {"include_usage": False, "x": 1}, "nvext": {"a": 1}, "ext": [2],
             "vllm_xargs": {"a": 1, "kv_cache_report_mode": "full"}}
    for name, body in bodies:
        seed("client_request", name, json.dumps(body))
        seed("prompt", name, json.dumps(body, ensure_ascii=False))
    for name, body in bodies[:20]:
        seed("client_request", f"{name}-edited", json.dumps(body | edits))
    for number, text in enumerate(texts_of("router/src/openai.rs", r'r#"(\s*\{.*?\}\s*)"#')):
        seed("client_request", f"test-{number}", text)
    seed("engine_facts", "sglang", '{"kv_events": {"endpoint_host": "*", "endpoint_port_base": 6000, "topic": "t",'
         ' "block_size": 64, "dp_size": 2}}')
    seed("engine_facts", "metrics", 'vllm:cache_config_info{block_size="32",num_gpu_blocks="40"} 1.0\n'
         'vllm:num_requests_running{engine="0"} 3.0\nprocess_start_time_seconds 1.79e9\nsglang:token_usage 0.5\n'
         "trtllm_kv_cache_max_blocks 7\n")


def streams():
    head = (VLLM / "http-chat-stream.headers").read_text().strip().replace("\r", "").replace("\n", "\r\n")
    for path in sorted(VLLM.glob("*.sse")):
        stream = path.read_bytes()
        cut_seed("sse_relay", path.stem, stream)
        cut_seed("load_events", path.stem, stream)
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in re.findall(rb"(?s).{1,200}", stream[:2500]))
        cut_seed("http1_answer", path.stem, f"{head}\r\n\r\n".encode() + chunks + b"0\r\n\r\n")
    made = ('data: {"choices":[{"delta":{"content":"Hi"},"token_ids":[1,2]}]}\r\n\r\n: ping\n\n'
            'data: {"choices":[],"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}\n\n'
            'event: error\ndata: {"error": {"message": "x"}}\n\ndata: [DONE]\n\n')
    for target in ("sse_relay", "load_events"):
        cut_seed(target, "made", made)
    for number, answer in enumerate(["HTTP/1.1 404 Not Found\r\ncontent-length: 4, 4\r\nconnection: close\r\n\r\ngone",
                                     "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\n\r\nuntil it closes",
                                     "HTTP/1.1 204 No Content\r\n\r\n", '{"detail": "Not Found"}']):
        cut_seed("http1_answer", f"made-{number}", answer)


def settings():
    """Every setting with its default, as documented; and lines as operators write them."""
    rooms, room = [], ""
    for line in (ROOT / "docs/configuration.md").read_text().splitlines():
        if found := re.match(r"## \[(\w+)\]", line):
            room = found[1]
            rooms.append(f"[{room}]")
        elif found := re.match(r"\| `(\w+)` \| `(.*?)` \|.*", line):
            rooms.append(f"{found[1]} = {found[2]}")
            seed("config", f"set-{room}-{found[1]}", f"{room}.{found[1]}={found[2].strip(chr(39))}")
            for variable in re.findall(r"`([A-Z_]+)`", line):
                seed("config", f"env-{variable}", f"{variable}={found[2].strip(chr(39))}")
    seed("config", "defaults", "\n".join(rooms))
    for number, line in enumerate(texts_of("router/src/config/worker_spec.rs", r'"((?:url=|http://|slots=).*?)"')):
        seed("config", f"worker-{number}", line)
        seed("config", f"workers-{number}", f"workers = ['{line}']")
        seed("config", f"list-{number}", f"[workers]\nlist = ['{line}']")
    for number, line in enumerate(["llm/vllm:http", "llm/vllm", "llm/", "workers.kubernetes=llm/vllm:8000"]):
        seed("config", f"service-{number}", line)
    for number, body in enumerate(['{"mode":"random","reset":true}', '{"policy":"dynamo","request_weight":3}',
                                   '{"overlap_weight":2,"temperature":0.5}', '{"draining":false}', "", "most=64",
                                   "org%2Fname%C3%A9%zz"]):
        seed("admin_bodies", str(number), body)


def files():
    """What the load generator and simulated engines read."""
    for path in sorted((ROOT / "engine-adapters/src/sim/presets").glob("*.toml")):
        seed("trace_file", path.stem, path.read_bytes())
    trace = [{"timestamp": at, "input_length": 1030, "output_length": 3, "hash_ids": [7, 8, at]} for at in (0, 500, 900)]
    seed("trace_file", "trace", "\n".join(map(json.dumps, trace)))
    cell = {"mode": "kv", "level": 60, "repeat": 1, "figures": {"ttft_p95_ms": 500.0, "tops": 2300.0, "hit_pct": 90.0},
            "by_turn": [{"turn": 1, "requests": 2}]}
    cells = [cell | {"mode": mode, "repeat": repeat} for mode in ("kv", "round_robin") for repeat in (1, 2, 3)]
    results = {"schema": "kvlane-load.sweep/1", "version": "0.1.0", "source": "simulated",
               "objective": {"ttft_ms": 600.0, "itl_ms": 60.0},
               "sets": [{"name": "s", "about": "", "levels_are": "conversations at a time", "conditions": {}, "cells": cells}]}
    seed("trace_file", "results", json.dumps(results))
    # A snapshot: two nodes, two workers; the target adds the checksum.
    head = b"KVLX" + struct.pack("<HHII", 1, 0, 2, 2)
    nodes = struct.pack("<IIIQQ", 0xFFFFFFFF, 3, 2, 101, 102) + struct.pack("<IIIQ", 0, 3, 1, 103)
    one = struct.pack("<QII", 7, 0, 2) + struct.pack("<IIIIQQ", 0, 0, 2, 0, 1, 2) + struct.pack("<IIIIQ", 1, 0, 1, 0, 3)
    other = struct.pack("<QII", 8, 1, 1) + struct.pack("<IIIIQ", 0, 0, 1, 1, 1)
    seed("snapshot", "two", head + nodes + one + other)
    seed("snapshot", "empty", b"KVLX" + struct.pack("<HHII", 1, 0, 0, 0))
    # Histories are made of any bytes.
    for number in range(8):
        noise = bytes((number * 37 + at * (at + number) * 11 + at // 7) % 256 for at in range(400 + 100 * number))
        seed("index_events", f"noise-{number}", noise)
        seed("nats_wire", f"noise-{number}", noise)


for part in (events, requests, streams, settings, files):
    part()
