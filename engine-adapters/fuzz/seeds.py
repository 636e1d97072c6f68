"""Writes the recorded and generated samples of the tests as seeds for the fuzz targets."""

import base64
import json
import pathlib
import struct

HERE = pathlib.Path(__file__).parent
FIXTURES = HERE.parent / "tests/fixtures/vllm"


def seed(target, name, data):
    folder = HERE / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


for line in (FIXTURES / "struct-encodings-by-version.jsonl").read_text().splitlines():
    record = json.loads(line)
    for form in ("payload_int_b64", "payload_bytes_hash_b64"):
        seed("vllm_batch", f"{record['vllm_version']}-{form}", base64.b64decode(record[form]))
sglang = json.loads((FIXTURES / "sglang-kv_events.SYNTHETIC.json").read_text())
seed("vllm_batch", "sglang", base64.b64decode(sglang["payload_b64"]))

trtllm = json.loads((FIXTURES / "trtllm-kv_cache_events.SYNTHETIC.json").read_text())
for event in trtllm["events"]:
    seed("trtllm_events", str(event["event_id"]), json.dumps([event]).encode())

EVENT = {"worker_id": 1, "event": {"event_id": 7, "dp_rank": 0, "data": {"stored": {"parent_hash": None, "blocks": [
    {"block_hash": 11, "tokens_hash": 22, "mm_extra_info": None}]}}}}
seed("dynamo_message", "json", json.dumps(EVENT).encode())


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


payload = pack([EVENT])
seed("dynamo_message", "payload", payload)
seed("dynamo_message", "envelope", pack(
    {"publisher_id": 1, "sequence": 0, "published_at": 5, "topic": "kv-events", "payload": payload}))
