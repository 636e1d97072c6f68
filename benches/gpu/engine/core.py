"""The process that owns the model: takes requests, runs step after step, hands out tokens, tells of its cache, keeps a log."""

import json
import time

import msgpack
import zmq

from .batch import Sequence

# What a front end says, and what it hears.
ADD, ABORT, RESET = range(3)
TOKENS, CLEARED = range(2)


class StepLog:
    """One line per step: what it carried and how long it took, planning and handing out included."""

    def __init__(self, path):
        self._file = open(path, "w", buffering=1 << 16) if path else None
        self._written = time.monotonic()

    def write(self, step, replayed, ms):
        if self._file is None:
            return
        line = {
            "at": round(time.time(), 3), "batch": len(step.decodes), "context_tokens": step.context_tokens,
            "prefill_tokens": step.prefill_tokens, "prefill_pairs": step.prefill_pairs, "graph": replayed,
            "ms": round(ms, 3),
        }  # fmt: skip
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
        if time.monotonic() - self._written > 1.0:
            self.flush()

    def flush(self):
        if self._file is not None:
            self._file.flush()
            self._written = time.monotonic()


class Core:
    def __init__(self, batch, model, publisher, log, inbox, outbox):
        self.batch, self.model, self.publisher, self.log = batch, model, publisher, log
        context = zmq.Context.instance()
        self._in, self._out = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        self._in.connect(inbox)
        self._out.connect(outbox)
        self._cleared = False

    def serve(self):
        while True:
            if not (self.batch.waiting or self.batch.running):
                self.log.flush()
                self._in.poll()
            begun = time.perf_counter()
            while self._in.poll(0):
                self._hear(msgpack.unpackb(self._in.recv()))
            step = self.batch.plan(time.monotonic())
            if len(step) == 0:
                continue
            replayed = self._run(step)
            self.log.write(step, replayed, (time.perf_counter() - begun) * 1e3)

    def _run(self, step):
        sampled = self.model.run(step)
        tokens, done, stored = self.batch.finish(step, sampled)
        removed, self.batch.pool.evicted = self.batch.pool.evicted, []
        self.publisher.publish(removed, stored, self._cleared)
        self._cleared = False
        over = {sequence.id for sequence in done}
        out = [
            (sequence.id, token, sequence.id in over, sequence.cached_tokens, sequence.queued_s) for sequence, token in tokens
        ]
        self._out.send(msgpack.packb((TOKENS, out, self._state())))
        return self.model.replayed

    def _hear(self, said):
        match said:
            case (kind, id, tokens, most, temperature, arrived, seed) if kind == ADD:
                self.batch.add(Sequence(id, tokens, len(tokens), most, temperature, arrived, seed))
            case (kind, id) if kind == ABORT:
                if self.batch.abort(id) and not self.batch.running:
                    self._out.send(msgpack.packb((TOKENS, [], self._state())))
            case (kind,) if kind == RESET:
                # As vLLM: refused while blocks are in use; told of with the next step.
                emptied = not self.batch.running
                if emptied:
                    self.batch.reset()
                    self.batch.pool.evicted, self._cleared = [], True
                self._out.send(msgpack.packb((CLEARED, emptied, self._state())))

    def _state(self):
        batch, pool = self.batch, self.batch.pool
        return {
            "running": len(batch.running), "waiting": len(batch.waiting), "usage": 1 - pool.unused / pool.count,
            "queried": batch.queried_tokens, "hit": batch.hit_tokens, "preemptions": batch.preemptions,
        }  # fmt: skip
