"""KV events as vLLM 0.24 and later publish them: batches of maps over ZeroMQ, numbered, and a replay of the latest."""

import collections
import struct
import threading
import time

import msgpack
import zmq

END = struct.pack(">q", -1)
TOPIC = b"kv-events"


class Publisher:
    """`port` publishes, `replay_port` answers who missed something. Both are bound to every address, as vLLM's are."""

    def __init__(self, port, replay_port, block_tokens, kept=10_000):
        self.block_tokens, self.port, self.replay_port, self.kept = block_tokens, port, replay_port, kept
        self._next = 0
        self._past = collections.deque(maxlen=kept)
        self._lock = threading.Lock()
        context = zmq.Context.instance()
        self._socket = context.socket(zmq.PUB)
        self._socket.set_hwm(100_000)
        self._socket.bind(f"tcp://*:{port}")
        self._replay = context.socket(zmq.ROUTER)
        self._replay.bind(f"tcp://*:{replay_port}")
        threading.Thread(target=self._answer, daemon=True).start()

    def publish(self, removed, stored, cleared=False):
        events = [{"type": "AllBlocksCleared"}] if cleared else []
        events += [{"type": "BlockRemoved", "block_hashes": [name], "medium": "GPU", "group_idx": 0} for name in removed]
        for run in stored:
            events.append({
                "type": "BlockStored", "block_hashes": run.hashes, "parent_block_hash": run.parent,
                "token_ids": run.tokens, "block_size": self.block_tokens, "lora_id": None, "medium": "GPU",
                "lora_name": None, "extra_keys": [None] * len(run.hashes), "group_idx": 0,
                "kv_cache_spec_kind": "full_attention",
            })  # fmt: skip
        if not events:
            return
        payload = msgpack.packb([time.time(), events, 0])
        with self._lock:
            number = struct.pack(">q", self._next)
            self._next += 1
            self._past.append((number, payload))
        self._socket.send_multipart((TOPIC, number, payload))

    def source(self):
        return {"0": {
            "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{self.port}",
            "replay_endpoint": f"tcp://*:{self.replay_port}", "buffer_steps": self.kept, "hwm": 100_000,
            "max_queue_size": 100_000, "topic": TOPIC.decode(),
        }}  # fmt: skip

    def _answer(self):
        while True:
            who, *_, asked = self._replay.recv_multipart()
            if len(asked) != 8:
                continue
            (first,) = struct.unpack(">q", asked)
            with self._lock:
                past = [one for one in self._past if struct.unpack(">q", one[0])[0] >= first]
            for number, payload in past:
                self._replay.send_multipart((who, b"", TOPIC, number, payload))
            self._replay.send_multipart((who, b"", b"", END, b""))
