"""Whether the engine computes what it should, on the GPU at hand; writes what it found as JSON.

    python3 check.py [--shape 8b] [--out FILE]

- kernels against plain attention in float64;
- greedy answers with and without a prefix hit, alone and among others, in one piece and in chunks: token for token, in exact
  mode (one order of summation) and in the mode that is measured, where numbers of rows choose other kernels of the library;
- how long steps take.
"""

import argparse
import json
import random
import statistics
import sys
import time

import torch

from engine import kernels
from engine.__main__ import MODEL
from engine.batch import Batch, Sequence
from engine.llama import SHAPES, Llama
from engine.text import Text

ANSWER = 64


def attention_error(heads, kv_heads, width):
    """The worst relative error of prefill and decode, over fresh random inputs."""
    block_tokens, blocks, worst, device, kind = 32, 64, {}, "cuda", torch.bfloat16
    for length, new in ((1000, 1), (1000, 200), (77, 77), (513, 1)):
        keys = torch.randn(blocks * block_tokens, kv_heads, width, device=device, dtype=kind)
        values = torch.randn_like(keys)
        order = torch.randperm(blocks - 1, device=device)[: -(-length // block_tokens)] + 1
        table = torch.zeros(1, blocks, dtype=torch.int32, device=device)
        table[0, : len(order)] = order
        at = torch.arange(length, device=device)
        slots = order[at // block_tokens] * block_tokens + at % block_tokens
        queries = torch.randn(new, heads * width, device=device, dtype=kind)
        out = torch.full_like(queries, float("nan"))
        if new == 1:
            scratch = kernels.decode_scratch(1, heads, width, blocks * block_tokens, device)
            lengths = torch.tensor([length], dtype=torch.int32, device=device)
            kernels.decode(queries, keys, values, table, lengths, out, scratch, heads, kv_heads, width, block_tokens)
        else:
            each = kernels.prefill_queries(heads, kv_heads)
            tiles = [[first, length - new + first, min(each, new - first), 0] for first in range(0, new, each)]
            tiles = torch.tensor(tiles, dtype=torch.int32, device=device)
            kernels.prefill(queries, keys, values, table, tiles, out, heads, kv_heads, width, block_tokens)
        share = heads // kv_heads
        key = keys[slots].double().repeat_interleave(share, 1).transpose(0, 1)
        value = values[slots].double().repeat_interleave(share, 1).transpose(0, 1)
        query = queries.double().view(new, heads, width).transpose(0, 1)
        seen = at[None, :] <= (length - new + torch.arange(new, device=device))[:, None]
        score = (query @ key.transpose(1, 2) * width**-0.5).masked_fill(~seen, -torch.inf)
        want = (score.softmax(-1) @ value).transpose(0, 1).reshape(new, -1)
        error = ((out.double() - want).norm() / want.norm()).item()
        name = "decode" if new == 1 else "prefill"
        worst[name] = max(worst.get(name, 0.0), error if error == error else float("inf"))
    return worst


def answers(model, prompts, slots, step_tokens, kv_blocks, together):
    """Greedy answers, and the prompt tokens that were found. `together`: all at once, or one after the other."""
    batch = Batch(kv_blocks, model.block_tokens, slots, step_tokens)
    said, waiting = {}, [Sequence(n, list(prompt), len(prompt), ANSWER) for n, prompt in enumerate(prompts)]
    while waiting or batch.waiting or batch.running:
        if waiting and (together or not batch.running):
            batch.add(waiting.pop(0))
            if together and waiting:
                continue
        step = batch.plan(0.0)
        _, done, _ = batch.finish(step, model.run(step))
        said.update((sequence.id, sequence.tokens[sequence.prompt_tokens :]) for sequence in done)
    return [said[n] for n in range(len(prompts))], batch.hit_tokens


def same(one, other):
    """Answers that are equal, and of those that are not, the first token that differs."""
    first = [next((at for at, (a, b) in enumerate(zip(x, y)) if a != b), None) for x, y in zip(one, other)]
    differ = [at for at in first if at is not None]
    return {"answers": len(first), "equal": len(first) - len(differ), "differ_from_token": sorted(differ)}


def greedy(model, kv_blocks, step_tokens):
    """Prompts that share a beginning of 2000 tokens, asked in ways that must not matter."""
    chance = random.Random(7)
    common = [chance.randrange(4000) for _ in range(2000)]
    prompts = [common + [chance.randrange(4000) for _ in range(chance.randrange(20, 400))] for _ in range(12)]
    alone = [answers(model, [prompt], 1, 4096, kv_blocks, False)[0][0] for prompt in prompts]
    ways = {
        "prefix hit": answers(model, prompts, 1, 4096, kv_blocks, False),
        "batched": answers(model, prompts, 12, 4096, kv_blocks, True),
        "chunked": answers(model, prompts, 1, 300, kv_blocks, False),
        "batched, chunked, hits": answers(model, [*prompts, *prompts], 12, step_tokens, kv_blocks, True),
    }
    found = {}
    for way, (said, hit) in ways.items():
        found[way] = {**same(alone * (len(said) // len(alone)), said), "hit_tokens": hit}
    found["different_tokens_of_first_answer"] = len(set(alone[0]))
    return found


def timed(model, step, times=8):
    model.run(step)
    took = []
    for _ in range(times):
        begun = time.perf_counter()
        model.run(step)
        took.append((time.perf_counter() - begun) * 1e3)
    return round(statistics.median(took), 3)


def steps(model, kv_blocks):
    """Milliseconds of steps, alone on the GPU, each the median of eight."""
    from engine.batch import Chunk, Step

    def sequence(n, tokens, blocks):
        one = Sequence(n, [n] * tokens, tokens, 8)
        one.blocks = blocks
        return one

    table = {"decode": [], "prefill": []}
    for context in (512, 4096):
        for rows in (1, 4, 8, 16, 24, 32):
            per = context // model.block_tokens
            chunks = [
                Chunk(sequence(n, context, [1 + (n * per + at) % kv_blocks for at in range(per)]), context - 1, context)
                for n in range(rows)
            ]
            for chunk in chunks:
                chunk.sequence.prompt_tokens = context - 1
            graphs, ms = model.graphs, timed(model, Step(chunks, []))
            model.graphs = {}
            eager = timed(model, Step(chunks, []))
            model.graphs = graphs
            table["decode"].append({"batch": rows, "context": context, "graph_ms": ms, "eager_ms": eager})
    for before, new in ((0, 64), (0, 256), (0, 512), (0, 1024), (0, 2048), (2048, 2048), (4000, 64), (4000, 256)):
        total = before + new
        blocks = [1 + at for at in range(-(-total // model.block_tokens))]
        one = sequence(0, total, blocks)
        table["prefill"].append({"new": new, "before": before, "ms": timed(model, Step([], [Chunk(one, before, total)]))})
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="8b", choices=[*SHAPES])
    parser.add_argument("--out")
    given = parser.parse_args()
    shape, kv_blocks, step_tokens = SHAPES[given.shape], 1200, 2048
    text = Text(MODEL)
    found = {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "shape": given.shape,
        "parameters": shape.parameters,
    }  # fmt: skip
    found["attention_error"] = attention_error(shape.heads, shape.kv_heads, shape.head_width)
    print("attention", found["attention_error"], flush=True)
    for mode, exact in (("exact", True), ("fast", False)):
        begun = time.monotonic()
        model = Llama(shape, kv_blocks, text.words, text.openers, slots=32, exact=exact)
        model.warm_up(step_tokens, graphs=not exact)
        ready = time.monotonic()
        found[mode] = greedy(model, kv_blocks, step_tokens)
        found[mode]["ready_s"], found[mode]["took_s"] = round(ready - begun, 1), round(time.monotonic() - ready, 1)
        print(mode, json.dumps(found[mode]), flush=True)
        if mode == "fast":
            found["steps"] = steps(model, kv_blocks)
            for row in [*found["steps"]["decode"], *found["steps"]["prefill"]]:
                print(row, flush=True)
        del model
        torch.cuda.empty_cache()
    if given.out:
        with open(given.out, "w") as file:
            json.dump(found, file, indent=1)
    wrong = [way for way, how in found["exact"].items() if isinstance(how, dict) and how["equal"] != how["answers"]]
    if wrong or max(found["attention_error"].values()) > 1e-2:
        sys.exit(f"not as it should be: {wrong or found['attention_error']}")


main()
