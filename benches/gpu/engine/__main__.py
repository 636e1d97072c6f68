"""python3 -m engine --port 8100: one replica."""

import argparse
import multiprocessing
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import threading

HERE = pathlib.Path(__file__).resolve()
MODEL = HERE.parents[3] / "engine-adapters/models/kvlane-small"


def pair(text):
    mean, _, deviation = text.partition(",")
    return float(mean), float(deviation or 0)


def options():
    parser = argparse.ArgumentParser(prog="engine", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument("--events-port", type=int, help="KV events; replay is one above [default: --port + 1000]")
    parser.add_argument("--name", default="kvlane-small", help="what the model is called")
    parser.add_argument("--model", default=str(MODEL), help="directory with tokenizer and chat template")
    parser.add_argument("--shape", default="8b", help="1b, 3b, 8b; ledger needs no GPU and has no weights")
    parser.add_argument("--kv-blocks", type=int, default=5300, help="blocks of KV cache")
    parser.add_argument("--block-tokens", type=int, default=32)
    parser.add_argument("--slots", type=int, default=32, help="sequences at a time")
    parser.add_argument("--step-tokens", type=int, default=2048, help="tokens one step may carry")
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--answer-tokens", type=pair, help="MEAN,DEVIATION of answers; as long as asked when not given")
    parser.add_argument("--no-graphs", action="store_true", help="launches every kernel of every step")
    parser.add_argument("--exact", action="store_true", help="one order of summation, whatever is in the batch; slow")
    parser.add_argument("--step-ms", type=float, default=0.0, help="of the ledger: how long its steps take")
    parser.add_argument("--log", help="file for a line per step")
    return parser.parse_args()


def model(options, text):
    if options.shape == "ledger":
        from .ledger import Ledger

        return Ledger(options.kv_blocks, options.block_tokens, text.words, text.openers, options.step_ms)
    from .llama import SHAPES, Llama

    if options.shape not in SHAPES:
        sys.exit(f"--shape is {options.shape}, expected ledger or one of {', '.join(SHAPES)}")
    llama = Llama(
        SHAPES[options.shape], options.kv_blocks, text.words, text.openers, options.block_tokens, options.slots,
        options.max_model_len, exact=options.exact,
    )  # fmt: skip
    llama.warm_up(options.step_tokens, graphs=not (options.no_graphs or options.exact))
    return llama


def main():
    from . import api
    from .batch import Batch
    from .core import Core, StepLog
    from .events import Publisher
    from .text import Text

    given = options()
    if given.kv_blocks * given.block_tokens < given.max_model_len:
        sys.exit(
            f"--kv-blocks {given.kv_blocks} hold {given.kv_blocks * given.block_tokens} tokens, expected room for "
            f"--max-model-len {given.max_model_len}"
        )
    text = Text(given.model)
    place = tempfile.mkdtemp(prefix="kvlane-engine-")
    inbox, outbox = f"ipc://{place}/in", f"ipc://{place}/out"
    weights = model(given, text)
    events_port = given.events_port or given.port + 1000
    publisher = Publisher(events_port, events_port + 1, given.block_tokens)
    # A process of its own, as vLLM's: text and sockets take nothing from the steps.
    front = multiprocessing.get_context("spawn").Process(
        target=api.serve, args=(given, publisher.source(), inbox, outbox), daemon=True
    )
    front.start()

    def leave(code):
        front.terminate()
        shutil.rmtree(place, ignore_errors=True)
        os._exit(code)

    signal.signal(signal.SIGTERM, lambda *_: leave(0))
    # One is nothing without the other.
    threading.Thread(target=lambda: (front.join(), leave(1)), daemon=True).start()
    batch = Batch(given.kv_blocks, given.block_tokens, given.slots, given.step_tokens)
    Core(batch, weights, publisher, StepLog(given.log), inbox, outbox).serve()


if __name__ == "__main__":
    main()
