"""A Llama-shaped model with random weights: real products, real attention, real sampling."""

import dataclasses

import numpy as np
import torch

from . import kernels
from .batch import Batch, Sequence


@dataclasses.dataclass(frozen=True)
class Shape:
    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int = 128_256

    @property
    def parameters(self):
        attention = self.width * self.head_width * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.width * self.inner) + 2 * self.vocabulary * self.width


# The sizes of Llama 3.1 and 3.2.
SHAPES = {
    "1b": Shape(layers=16, width=2048, inner=8192, heads=32, kv_heads=8, head_width=64),
    "3b": Shape(layers=28, width=3072, inner=8192, heads=24, kv_heads=8, head_width=128),
    "8b": Shape(layers=32, width=4096, inner=14336, heads=32, kv_heads=8, head_width=128),
}
EPSILON = 1e-5
ROPE_BASE = 500_000.0


@dataclasses.dataclass
class Layer:
    norm: torch.Tensor
    qkv: torch.Tensor
    out: torch.Tensor
    inner_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor


@dataclasses.dataclass
class Graph:
    graph: torch.cuda.CUDAGraph
    inputs: "Inputs"
    sampled: torch.Tensor


class Inputs:
    """What a step needs to know, in one piece of memory, so that one copy brings it over."""

    def __init__(self, rows, sequences, table_width, tiles, device):
        self.table_width = table_width
        sizes = dict(
            ids=rows, positions=rows, slots=rows, lengths=sequences, samples=sequences, warmth=sequences,
            tables=sequences * table_width, tiles=tiles * 4,
        )  # fmt: skip
        self._host = torch.zeros(sum(sizes.values()), dtype=torch.int32, pin_memory=True)
        self._there = torch.zeros_like(self._host, device=device)
        here, end = self._host.numpy(), 0
        for name, size in sizes.items():
            end += size
            part = slice(end - size, end)
            setattr(self, "_" + name, here[part])
            setattr(self, name, self._there[part])
        self._warmth, self.warmth = self._warmth.view(np.float32), self.warmth.view(torch.float32)
        self._tables, self.tables = self._tables.reshape(-1, table_width), self.tables.view(-1, table_width)
        self._tiles, self.tiles = self._tiles.reshape(-1, 4), self.tiles.view(-1, 4)

    def fill(self, decodes, prefills, block_tokens, tile_queries):
        row = tile = 0
        for place, chunk in enumerate([*decodes, *prefills]):
            sequence, count = chunk.sequence, chunk.end - chunk.start
            table = table_of(sequence, self.table_width)
            at = np.arange(chunk.start, chunk.end, dtype=np.int32)
            mine = slice(row, row + count)
            self._ids[mine] = sequence.tokens[chunk.start : chunk.end]
            self._positions[mine] = at
            self._slots[mine] = table[at // block_tokens] * block_tokens + at % block_tokens
            self._lengths[place] = chunk.end
            # The row its next token comes out of.
            self._samples[place] = row + count - 1
            self._warmth[place] = sequence.temperature
            self._tables[place] = table
            if place >= len(decodes):
                for first in range(0, count, tile_queries):
                    self._tiles[tile] = row + first, chunk.start + first, min(tile_queries, count - first), place
                    tile += 1
            row += count
        # What is left over is nobody's, and reads and writes block 0 alone.
        for part in (self._ids, self._positions, self._slots):
            part[row:] = 0
        rest = len(decodes) + len(prefills)
        self._lengths[rest:] = 1
        self._tables[rest:] = 0
        self._there.copy_(self._host, non_blocking=True)


def table_of(sequence, width):
    """A sequence's blocks as an array that grows with them."""
    known = getattr(sequence, "table", None)
    if known is None or known[0] is not sequence.blocks:
        known = [sequence.blocks, np.zeros(width, dtype=np.int32), 0]
        sequence.table = known
    blocks, table, filled = known
    if filled < len(blocks):
        table[filled : len(blocks)] = blocks[filled:]
        known[2] = len(blocks)
    return table


class Llama:
    """`words` are the tokens that may come out, `openers` those an answer may begin with."""

    def __init__(
        self, shape, kv_blocks, words, openers, block_tokens=32, slots=32, longest=8192, seed=1, exact=False
    ):
        self.shape, self.block_tokens, self.slots, self.exact = shape, block_tokens, slots, exact
        self.device, self.kind, self.kv_blocks = torch.device("cuda"), torch.bfloat16, kv_blocks
        self.table_width = -(-longest // block_tokens)
        self.product = kernels.product if exact else torch.nn.functional.linear
        self.tile_queries = kernels.prefill_queries(shape.heads, shape.kv_heads)
        random = torch.Generator(self.device).manual_seed(seed)

        def weights(*size):
            return torch.empty(size, dtype=self.kind, device=self.device).normal_(0.0, 0.02, generator=random)

        def cache():
            slots = ((kv_blocks + 1) * block_tokens, shape.kv_heads, shape.head_width)
            return torch.zeros(slots, dtype=self.kind, device=self.device)

        attention = shape.heads * shape.head_width
        ones = torch.ones(shape.width, dtype=self.kind, device=self.device)
        # A spread of one: rows that all look alike would make every answer the same.
        self.embedding = weights(shape.vocabulary, shape.width).mul_(50.0)
        self.layers = [
            Layer(
                norm=ones, qkv=weights(attention + 2 * shape.kv_heads * shape.head_width, shape.width),
                out=weights(shape.width, attention), inner_norm=ones, gate_up=weights(2 * shape.inner, shape.width),
                down=weights(shape.width, shape.inner), keys=cache(), values=cache(),
            )
            for _ in range(shape.layers)
        ]  # fmt: skip
        self.last_norm, self.head = ones, weights(shape.vocabulary, shape.width)
        half = torch.arange(0, shape.head_width, 2, device=self.device, dtype=torch.float32) / shape.head_width
        angle = torch.arange(longest, device=self.device, dtype=torch.float32)[:, None] * ROPE_BASE**-half[None, :]
        self.cosine, self.sine = angle.cos(), angle.sin()
        self.words = torch.tensor(words, dtype=torch.int64, device=self.device)
        self.openers = torch.tensor(openers, dtype=torch.int64, device=self.device)
        self.scratch = kernels.decode_scratch(slots, shape.heads, shape.head_width, longest, self.device)
        self.graphs = {}

    def warm_up(self, step_tokens, graphs=True):
        """Compiles what is compiled on first use, and captures the decoding steps."""
        batch = Batch(self.kv_blocks, self.block_tokens, self.slots, step_tokens)
        room = min(self.kv_blocks, self.table_width) * self.block_tokens - self.block_tokens
        for count in (min(step_tokens, room), 64, 1):
            batch.add(Sequence(0, [0] * count, count, most_tokens=3))
            while batch.waiting or batch.running:
                step = batch.plan(0.0)
                batch.finish(step, self.run(step))
        if graphs:
            steps = 1 if self.slots <= 8 else 4
            self._capture({1, 2, *range(steps, self.slots + 1, steps), self.slots})

    @torch.inference_mode()
    def _capture(self, sizes):
        """Decoding steps of these sizes become one launch each; steps in between are padded."""
        pool = None
        for rows in sorted(sizes, reverse=True):
            inputs = Inputs(rows, rows, self.table_width, 0, self.device)
            inputs.fill([], [], self.block_tokens, self.tile_queries)

            def compute():
                logits = self.product(self._forward(inputs, rows, rows, 0), self.head)
                return self._choose(logits, inputs.warmth, self.words)

            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                compute()
            torch.cuda.current_stream().wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                sampled = compute()
            pool = pool or graph.pool()
            self.graphs[rows] = Graph(graph, inputs, sampled)

    @torch.inference_mode()
    def run(self, step):
        """The next token of each chunk that samples, in order."""
        rows = len(step.decodes)
        size = None if step.prefills else min((size for size in self.graphs if size >= rows), default=None)
        self.replayed = size is not None
        return self._replay(self.graphs[size], step.decodes) if self.replayed else self._run(step)

    def _replay(self, graph, decodes):
        graph.inputs.fill(decodes, [], self.block_tokens, self.tile_queries)
        graph.graph.replay()
        return graph.sampled[: len(decodes)].tolist()

    def _run(self, step):
        chunks = [*step.decodes, *step.prefills]
        # In exact mode a decoded token is a prefill of one: the same kernel, the same order of summation.
        decodes, prefills = ([], chunks) if self.exact else (step.decodes, step.prefills)
        rows = sum(chunk.end - chunk.start for chunk in chunks)
        tiles = sum(-(-(chunk.end - chunk.start) // self.tile_queries) for chunk in prefills)
        inputs = Inputs(rows, len(chunks), self.table_width, tiles, self.device)
        inputs.fill(decodes, prefills, self.block_tokens, self.tile_queries)
        hidden = self._forward(inputs, rows, len(decodes), tiles)
        out = [place for place, chunk in enumerate(chunks) if chunk.samples]
        if not out:
            # Nobody waits for a result; the log does, or the time would be the next step's.
            torch.cuda.synchronize()
            return []
        opens = [chunks[place].sequence.generated == 0 for place in out]
        out, opens = torch.tensor(out, device=self.device), torch.tensor(opens, device=self.device)
        logits, warmth = self.product(hidden[inputs.samples[out].long()], self.head), inputs.warmth[out]
        opener, word = self._choose(logits, warmth, self.openers), self._choose(logits, warmth, self.words)
        return torch.where(opens, opener, word).tolist()

    def _forward(self, inputs, rows, decodes, tiles):
        shape, product = self.shape, self.product
        sizes = (shape.heads, shape.kv_heads, shape.head_width)
        x = torch.nn.functional.embedding(inputs.ids, self.embedding)
        residual = torch.empty_like(x)
        for number, layer in enumerate(self.layers):
            x = kernels.add_norm(x, residual, layer.norm, EPSILON, add=number > 0)
            qkv = product(x, layer.qkv)
            kernels.turn_and_store(
                qkv, inputs.positions, inputs.slots, self.cosine, self.sine, layer.keys, layer.values, *sizes
            )
            seen = torch.empty((rows, shape.heads * shape.head_width), dtype=x.dtype, device=x.device)
            cache = (layer.keys, layer.values)
            if decodes:
                kernels.decode(
                    qkv[:decodes], *cache, inputs.tables[:decodes], inputs.lengths[:decodes], seen[:decodes],
                    self.scratch, *sizes, self.block_tokens,
                )  # fmt: skip
            if tiles:
                kernels.prefill(qkv, *cache, inputs.tables, inputs.tiles, seen, *sizes, self.block_tokens)
            x = product(seen, layer.out)
            x = kernels.add_norm(x, residual, layer.inner_norm, EPSILON, add=True)
            x = product(kernels.gate(product(x, layer.gate_up)), layer.down)
        return kernels.add_norm(x, residual, self.last_norm, EPSILON, add=True)

    @staticmethod
    def _choose(logits, warmth, allowed):
        """Greedy at temperature 0; above, the maximum after noise of that size, which is a draw from the softmax."""
        scores = logits[:, allowed].float()
        noise = torch.rand_like(scores).clamp_min_(1e-20).log_().neg_().log_().neg_()
        return allowed[(scores + warmth[:, None] * noise).argmax(dim=1)]
