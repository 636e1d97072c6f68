"""What a step does on the GPU besides matrix products, and attention over a cache that lies in blocks."""

import torch
import triton
import triton.language as tl

# Tokens of the cache read at a time.
TILE = 64
# Decoding cuts a long context into parts that are read at the same time. Their size is fixed, not their number, so that a
# sequence's result does not depend on who is decoded beside it.
PART = 512
# Rows of the matrix unit: queries of a tile times heads that share keys.
ROWS = 128
MINIMUM = 16


@triton.jit
def _add_norm(x, residual, weight, out, width, eps, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    here = at < width
    value = tl.load(x + row * width + at, mask=here, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(residual + row * width + at, mask=here, other=0.0).to(tl.float32)
    tl.store(residual + row * width + at, value, mask=here)
    scale = 1.0 / tl.sqrt(tl.sum(value * value) / width + eps)
    gain = tl.load(weight + at, mask=here, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, value * scale * gain, mask=here)


def add_norm(x, residual, weight, eps, add):
    """`residual` becomes the sum (or `x`); what comes back is that, brought to length one and weighed."""
    out = torch.empty_like(x)
    width = x.shape[1]
    _add_norm[(x.shape[0],)](x, residual, weight, out, width, eps, ADD=add, BLOCK=triton.next_power_of_2(width))
    return out


@triton.jit
def _gate(x, out, width, BLOCK: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = at < width
    gate = tl.load(x + row * 2 * width + at, mask=here, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * width + width + at, mask=here, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, gate / (1.0 + tl.exp(-gate)) * up, mask=here)


def gate(x):
    rows, width = x.shape[0], x.shape[1] // 2
    out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    _gate[(rows, triton.cdiv(width, 2048))](x, out, width, BLOCK=2048)
    return out


@triton.jit
def _turn_and_store(
    qkv, positions, slots, cosine, sine, keys, values, stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    token, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * SOME
    half: tl.constexpr = D // 2
    head, at = first + tl.arange(0, SOME)[:, None], tl.arange(0, half)[None, :]
    source = qkv + token * stride + head * D + at
    left, right = tl.load(source).to(tl.float32), tl.load(source + half).to(tl.float32)
    slot = tl.load(slots + token).to(tl.int64) * KV_HEADS * D
    if first < HEADS + KV_HEADS:
        position = tl.load(positions + token) * half + at
        cos, sin = tl.load(cosine + position), tl.load(sine + position)
        left, right = left * cos - right * sin, right * cos + left * sin
        if first < HEADS:
            tl.store(source, left)
            tl.store(source + half, right)
        else:
            to = keys + slot + (head - HEADS) * D + at
            tl.store(to, left)
            tl.store(to + half, right)
    else:
        to = values + slot + (head - HEADS - KV_HEADS) * D + at
        tl.store(to, left)
        tl.store(to + half, right)


def turn_and_store(qkv, positions, slots, cosine, sine, keys, values, heads, kv_heads, head_width):
    """Rotates queries in place; keys, rotated, and values go to their slots in the cache."""
    some = 8
    grid = (qkv.shape[0], (heads + 2 * kv_heads) // some)
    _turn_and_store[grid](
        qkv, positions, slots, cosine, sine, keys, values, qkv.shape[1],
        HEADS=heads, KV_HEADS=kv_heads, D=head_width, SOME=some,
    )  # fmt: skip


@triton.jit
def _place(table, at, here, head, BLOCK: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr):
    """Where in the cache the tokens at some positions of a sequence lie."""
    block = tl.load(table + at // BLOCK, mask=here, other=0).to(tl.int64)
    return (block * BLOCK + at % BLOCK) * (KV_HEADS * D) + head * D


@triton.jit
def _look(query, best, total, sum, keys, values, place, here, seen, D: tl.constexpr, scale):
    """One tile of keys and values: the running maximum, total and weighed sum of what was seen so far."""
    width = tl.arange(0, D)
    key = tl.load(keys + place[None, :] + width[:, None], mask=here[None, :], other=0.0)
    score = tl.where(seen, tl.dot(query, key) * scale, -1.0e30)
    higher = tl.maximum(best, tl.max(score, 1))
    weight = tl.where(seen, tl.exp(score - higher[:, None]), 0.0)
    fade = tl.exp(best - higher)
    value = tl.load(values + place[:, None] + width[None, :], mask=here[:, None], other=0.0)
    sum = sum * fade[:, None] + tl.dot(weight.to(value.dtype), value)
    return higher, total * fade + tl.sum(weight, 1), sum


@triton.jit
def _decode(
    queries, keys, values, tables, lengths, parts, weights, scale, stride, table_width, part_count,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    PART: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row, head, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    length, begin = tl.load(lengths + row), part * PART
    if begin < length:
        share: tl.constexpr = HEADS // KV_HEADS
        mine, width = tl.arange(0, ROWS), tl.arange(0, D)
        real = (mine < share)[:, None]
        query_head = head * share + mine
        query = tl.load(queries + row * stride + query_head[:, None] * D + width[None, :], mask=real, other=0.0)
        best = tl.full([ROWS], -1.0e30, tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        sum = tl.zeros([ROWS, D], tl.float32)
        for start in range(begin, tl.minimum(begin + PART, length), TILE):
            at = start + tl.arange(0, TILE)
            here = at < length
            place = _place(tables + row * table_width, at, here, head, BLOCK, KV_HEADS, D)
            best, total, sum = _look(query, best, total, sum, keys, values, place, here, here[None, :], D, scale)
        to = (row * HEADS + query_head) * part_count + part
        tl.store(parts + to[:, None] * D + width[None, :], sum / total[:, None], mask=real)
        tl.store(weights + to, best + tl.log(total), mask=mine < share)


@triton.jit
def _join(parts, weights, lengths, out, part_count, HEADS: tl.constexpr, D: tl.constexpr, PART: tl.constexpr):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    width, of = tl.arange(0, D), (row * HEADS + head) * part_count
    best, total, sum = -1.0e30, 0.0, tl.zeros([D], tl.float32)
    for part in range(0, tl.cdiv(tl.load(lengths + row), PART)):
        weight = tl.load(weights + of + part)
        higher = tl.maximum(best, weight)
        fade, gain = tl.exp(best - higher), tl.exp(weight - higher)
        sum = sum * fade + tl.load(parts + (of + part) * D + width) * gain
        total = total * fade + gain
        best = higher
    tl.store(out + (row * HEADS + head) * D + width, sum / total)


def decode(queries, keys, values, tables, lengths, out, scratch, heads, kv_heads, head_width, block_tokens):
    """Attention of one new token per sequence to all of its `lengths` tokens. `queries` and `out` are rows of heads."""
    rows, part_count = lengths.shape[0], triton.cdiv(tables.shape[1] * block_tokens, PART)
    parts, weights = scratch
    _decode[(rows, kv_heads, part_count)](
        queries, keys, values, tables, lengths, parts, weights, head_width**-0.5,
        queries.stride(0), tables.stride(0), part_count,
        HEADS=heads, KV_HEADS=kv_heads, D=head_width, BLOCK=block_tokens, PART=PART, TILE=TILE, ROWS=MINIMUM,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    _join[(rows, heads)](parts, weights, lengths, out, part_count, HEADS=heads, D=head_width, PART=PART)


def decode_scratch(rows, heads, head_width, longest, device):
    part_count = triton.cdiv(longest, PART)
    parts = torch.empty(rows * heads * part_count * head_width, dtype=torch.float32, device=device)
    return parts, torch.empty(rows * heads * part_count, dtype=torch.float32, device=device)


@triton.jit
def _prefill(
    queries, keys, values, tables, tiles, out, scale, stride, table_width,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    SHARE: tl.constexpr, QUERIES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    # Late tiles have most to read, and begin first.
    tile, head = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1)
    first, position = tl.load(tiles + tile * 4).to(tl.int64), tl.load(tiles + tile * 4 + 1)
    count, sequence = tl.load(tiles + tile * 4 + 2), tl.load(tiles + tile * 4 + 3).to(tl.int64)
    share: tl.constexpr = HEADS // KV_HEADS
    mine, width = tl.arange(0, QUERIES * SHARE), tl.arange(0, D)
    which, part = mine // SHARE, mine % SHARE
    real = ((which < count) & (part < share))[:, None]
    place_of = (first + which)[:, None] * stride + (head * share + part)[:, None] * D + width[None, :]
    query = tl.load(queries + place_of, mask=real, other=0.0)
    best = tl.full([QUERIES * SHARE], -1.0e30, tl.float32)
    total = tl.zeros([QUERIES * SHARE], tl.float32)
    sum = tl.zeros([QUERIES * SHARE, D], tl.float32)
    for start in range(0, position + count, TILE):
        at = start + tl.arange(0, TILE)
        here = at < position + count
        place = _place(tables + sequence * table_width, at, here, head, BLOCK, KV_HEADS, D)
        seen = at[None, :] <= (position + which)[:, None]
        best, total, sum = _look(query, best, total, sum, keys, values, place, here, seen, D, scale)
    to = (first + which)[:, None] * (HEADS * D) + (head * share + part)[:, None] * D + width[None, :]
    tl.store(out + to, sum / total[:, None], mask=real)


def prefill_queries(heads, kv_heads):
    """Queries of one tile."""
    return ROWS // triton.next_power_of_2(heads // kv_heads)


def prefill(queries, keys, values, tables, tiles, out, heads, kv_heads, head_width, block_tokens):
    """Attention of runs of new tokens, each to all before it and itself. A tile is a row of `queries`, its position, how
    many follow each other, and the row of `tables` that is its sequence's."""
    share = triton.next_power_of_2(heads // kv_heads)
    _prefill[(tiles.shape[0], kv_heads)](
        queries, keys, values, tables, tiles, out, head_width**-0.5, queries.stride(0), tables.stride(0),
        HEADS=heads, KV_HEADS=kv_heads, D=head_width, BLOCK=block_tokens, SHARE=share, QUERIES=ROWS // share,
        TILE=TILE, num_warps=8, num_stages=2,
    )  # fmt: skip


@triton.jit
def _product(x, w, out, rows, columns, depth, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    here, there = (row < rows)[:, None], (column < columns)[None, :]
    sum = tl.zeros([M, N], tl.float32)
    for start in range(0, depth, K):
        at = start + tl.arange(0, K)
        left = tl.load(x + row[:, None].to(tl.int64) * depth + at[None, :], mask=here, other=0.0)
        right = tl.load(w + column[None, :].to(tl.int64) * depth + at[:, None], mask=there, other=0.0)
        sum += tl.dot(left, right)
    tl.store(out + row[:, None].to(tl.int64) * columns + column[None, :], sum, mask=here & there)


def product(x, w):
    """`x` times `w` transposed, in one order of summation however many rows there are; libraries choose another kernel, and
    with it another rounding, for another number of rows."""
    rows, depth = x.shape
    out = torch.empty((rows, w.shape[0]), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(rows, 64), triton.cdiv(w.shape[0], 128))
    _product[grid](x, w, out, rows, w.shape[0], depth, M=64, N=128, K=64, num_warps=4, num_stages=3)
    return out
