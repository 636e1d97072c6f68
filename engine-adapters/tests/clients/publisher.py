"""A KV event publisher on libzmq, told what to do on its standard input, one JSON object a line.

It behaves as vLLM's does: PUB with a bound on what waits for a subscriber, ROUTER for replays of a bounded buffer.
"""

import collections
import json
import struct
import sys
import time

import msgpack
import zmq

BLOCK = 4


class Publisher:
    def __init__(self, events, replay, hwm, buffer_steps):
        self.context = zmq.Context()
        self.events = self.context.socket(zmq.PUB)
        self.events.sndhwm = hwm
        self.events.linger = 0
        (self.events.bind if events.startswith("tcp://127") else self.events.connect)(events.replace("connect:", ""))
        self.replay = self.context.socket(zmq.ROUTER)
        self.replay.linger = 0
        if replay:
            self.replay.bind(replay)
        self.buffer = collections.deque(maxlen=buffer_steps)
        self.number = 0

    def publish(self, first, count, lost):
        """Each batch stores one block of a path of its own; lost ones are numbered and buffered, not sent."""
        for name in range(first, first + count):
            event = {
                "type": "BlockStored", "block_hashes": [name], "parent_block_hash": None,
                "token_ids": [name] * BLOCK, "block_size": BLOCK, "lora_id": None, "medium": "GPU", "lora_name": None,
            }
            payload = msgpack.packb([time.time(), [event], 0])
            number = struct.pack(">Q", self.number)
            self.number += 1
            self.buffer.append((number, payload))
            if not lost:
                self.events.send_multipart([b"kv", number, payload])

    def remove(self, first, count):
        """Each batch removes one block, numbered and buffered, and not sent."""
        for name in range(first, first + count):
            event = {"type": "BlockRemoved", "block_hashes": [name], "medium": "GPU"}
            self.buffer.append((struct.pack(">Q", self.number), msgpack.packb([time.time(), [event], 0])))
            self.number += 1

    def answer(self):
        while self.replay.poll(0):
            who, _, start = self.replay.recv_multipart()
            first = struct.unpack(">Q", start)[0]
            for number, payload in self.buffer:
                if struct.unpack(">Q", number)[0] >= first:
                    self.replay.send_multipart([who, b"", b"kv", number, payload])
            self.replay.send_multipart([who, b"", b"", b"\xff" * 8, b""])

    def close(self):
        self.context.destroy(linger=0)


def main():
    poller = zmq.Poller()
    poller.register(sys.stdin.fileno(), zmq.POLLIN)
    publisher = None
    while True:
        ready = dict(poller.poll(5))
        if publisher:
            publisher.answer()
        if sys.stdin.fileno() not in ready:
            continue
        line = sys.stdin.readline()
        if not line:
            return
        command = json.loads(line)
        kind = command.pop("do")
        if kind == "open":
            publisher = Publisher(**command)
        elif kind == "publish":
            publisher.publish(**command)
        elif kind == "remove":
            publisher.remove(**command)
        elif kind == "close":
            publisher.close()
            publisher = None
        print("done", flush=True)


main()
