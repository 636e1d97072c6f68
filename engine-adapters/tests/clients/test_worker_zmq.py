"""The simulated worker's KV events as libzmq and msgpack read them."""

import struct

import msgpack
import pytest
import zmq

PATIENCE_MS = 10_000


@pytest.fixture
def context():
    with zmq.Context() as context:
        yield context


def subscribe(context, worker, topic=b""):
    socket = context.socket(zmq.SUB)
    socket.linger = 0
    socket.rcvtimeo = PATIENCE_MS
    socket.subscribe(topic)
    monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    socket.connect(f"tcp://127.0.0.1:{worker.events_port}")
    assert monitor.poll(PATIENCE_MS), "no handshake"
    socket.disable_monitor()
    # The handshake is done; the subscription follows it, and until it is there nothing is heard.
    for attempt in range(100):
        worker.complete([3000 + attempt] * 33)
        if socket.poll(100):
            break
    number = None
    while socket.poll(300):
        _, number, _ = receive(socket)
    assert number is not None, "nothing is heard"
    return socket, number


def receive(socket):
    topic, number, payload = socket.recv_multipart()
    return topic, struct.unpack(">Q", number)[0], msgpack.unpackb(payload)


def event_kind(event):
    return event["type"] if isinstance(event, dict) else event[0]


def replay(context, worker, first):
    with context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.rcvtimeo = PATIENCE_MS
        socket.connect(f"tcp://127.0.0.1:{worker.replay_port}")
        socket.send_multipart([b"", struct.pack(">Q", first)])
        replies = []
        while True:
            frames = socket.recv_multipart()
            if frames[-2] == b"\xff" * 8:
                return replies, frames
            replies.append((struct.unpack(">Q", frames[-2])[0], frames))


def test_a_conversations_blocks_as_maps(context, start):
    worker = start()
    socket, last = subscribe(context, worker)
    prompt = list(range(100, 180))
    worker.complete(prompt)
    topic, number, (seconds, events, rank) = receive(socket)
    assert (topic, number, rank) == (b"kv-events", last + 1, 0)
    assert seconds > 1_700_000_000
    (stored,) = events
    assert list(stored) == [
        "type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
        "extra_keys", "group_idx", "kv_cache_spec_kind",
    ]
    assert stored["token_ids"] == prompt[:64]
    assert (stored["block_size"], stored["medium"], stored["parent_block_hash"]) == (32, "GPU", None)
    assert all(isinstance(name, int) for name in stored["block_hashes"])
    # What follows names its parent by the engine's own name for it.
    worker.complete(prompt + list(range(200, 240)))
    _, _, (_, (more,), _) = receive(socket)
    assert more["parent_block_hash"] == stored["block_hashes"][1]
    assert more["token_ids"] == (prompt + list(range(200, 240)))[64:96]


def test_arrays_and_digests(context, start):
    worker = start("--event-spelling", "arrays", "--block-names", "bytes")
    socket, _ = subscribe(context, worker)
    worker.complete(list(range(100, 140)), cache_salt="tenant-a")
    _, _, (_, (stored,), _) = receive(socket)
    assert len(stored) == 12
    assert stored[0] == "BlockStored"
    assert len(stored[1][0]) == 32 and isinstance(stored[1][0], bytes)
    assert stored[8] == [["tenant-a"]]


def test_evictions_and_a_reset(context, start):
    worker = start("--kv-blocks", "8")
    socket, _ = subscribe(context, worker)
    worker.complete(list(range(100, 200)))
    receive(socket)
    worker.complete(list(range(300, 520)))
    removed = 0
    while removed < 2:
        _, _, (_, events, _) = receive(socket)
        removed += sum(event_kind(event) == "BlockRemoved" for event in events)
        assert all(len(event["block_hashes"]) == 1 for event in events if event_kind(event) == "BlockRemoved")
    worker.post("/reset_prefix_cache", {})
    worker.complete(list(range(600, 640)))
    kinds = []
    while kinds.count("AllBlocksCleared") == 0 or kinds[-1] != "BlockStored":
        kinds += [event_kind(event) for event in receive(socket)[2][1]]
    # Said with the next step, before anything that is stored anew.
    assert kinds[-2:] == ["AllBlocksCleared", "BlockStored"]


def test_second_copies_are_stored_and_removed_once_each(context, start):
    worker = start("--second-copies", "--kv-blocks", "64")
    for request in range(60):
        worker.complete(list(range(50 * request, 50 * request + 130)))
    copies, most = {}, 0
    for _, frames in replay(context, worker, 0)[0]:
        for event in msgpack.unpackb(frames[-1])[1]:
            change = 1 if event_kind(event) == "BlockStored" else -1
            for name in event["block_hashes"]:
                copies[name] = copies.get(name, 0) + change
                most = max(most, copies[name])
                assert copies[name] >= 0
    assert most == 2
    assert sum(count > 0 for count in copies.values()) <= 64


def test_replay_and_its_end_marker(context, start):
    worker = start("--buffer-steps", "5")
    for request in range(20):
        worker.complete(list(range(40 * request, 40 * request + 35)))
    replies, end = replay(context, worker, 0)
    assert [number for number, _ in replies] == [15, 16, 17, 18, 19]
    assert [len(frames) for _, frames in replies] == [4] * 5
    assert end == [b"", b"", b"\xff" * 8, b""]
    assert replay(context, worker, 99)[0] == []
    old = start("--event-spelling", "arrays")
    old.complete(list(range(40)))
    replies, end = replay(context, old, 0)
    assert len(replies[0][1]) == 3 and end == [b"", b"\xff" * 8, b""]


def test_a_subscriber_that_has_bound_is_found(context, start):
    with context.socket(zmq.SUB) as socket:
        socket.linger = 0
        socket.rcvtimeo = PATIENCE_MS
        socket.subscribe(b"kv-events")
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        worker = start("--events-connect", f"tcp://127.0.0.1:{port}")
        for request in range(50):
            worker.complete(list(range(40 * request, 40 * request + 35)))
            if socket.poll(100):
                break
        assert receive(socket)[0] == b"kv-events"


def test_topics_are_filtered(context, start):
    worker = start("--topic", "kv@worker-0")
    with context.socket(zmq.SUB) as deaf:
        deaf.linger = 0
        deaf.subscribe(b"other")
        deaf.connect(f"tcp://127.0.0.1:{worker.events_port}")
        socket, _ = subscribe(context, worker, b"kv@")
        worker.complete(list(range(40)))
        assert receive(socket)[0] == b"kv@worker-0"
        assert not deaf.poll(200)
