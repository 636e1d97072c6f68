"""Who is in the batch, and what each step carries: continuous batching with chunked prefill.

Nothing here touches a GPU or a clock that it was not given.
"""

import collections
import dataclasses
import itertools

from .blocks import BlockPool, chain, extend


@dataclasses.dataclass(eq=False)
class Sequence:
    id: int
    tokens: list
    prompt_tokens: int
    most_tokens: int
    temperature: float = 0.0
    arrived: float = 0.0
    # Two prompts with different seeds share nothing.
    seed: int = 0
    blocks: list = dataclasses.field(default_factory=list)
    hashes: list = dataclasses.field(default_factory=list)
    # Leading tokens whose keys and values are in blocks.
    computed: int = 0
    # Leading blocks that have their name.
    named: int = 0
    cached_tokens: int | None = None
    queued_s: float = 0.0

    @property
    def generated(self):
        return len(self.tokens) - self.prompt_tokens

    @property
    def decoding(self):
        return self.generated > 0 and self.computed == len(self.tokens) - 1


@dataclasses.dataclass
class Chunk:
    """Tokens `start..end` of a sequence; its next token comes out if `end` is its end."""

    sequence: Sequence
    start: int
    end: int

    @property
    def samples(self):
        return self.end == len(self.sequence.tokens)


@dataclasses.dataclass
class Stored:
    """Full blocks of a sequence that nobody had before."""

    parent: int | None
    hashes: list
    tokens: list


@dataclasses.dataclass
class Step:
    decodes: list
    prefills: list

    def __len__(self):
        return len(self.decodes) + len(self.prefills)

    @property
    def context_tokens(self):
        """Cached tokens that decoding reads."""
        return sum(chunk.end for chunk in self.decodes)

    @property
    def prefill_tokens(self):
        return sum(chunk.end - chunk.start for chunk in self.prefills)

    @property
    def prefill_pairs(self):
        """Pairs of a new token and one it attends to."""
        return sum((chunk.end - chunk.start) * (chunk.start + chunk.end + 1) // 2 for chunk in self.prefills)


class Batch:
    def __init__(self, kv_blocks, block_tokens=32, slots=32, step_tokens=2048):
        self.pool = BlockPool(kv_blocks)
        self.block_tokens = block_tokens
        self.slots = slots
        self.step_tokens = step_tokens
        self.waiting = collections.deque()
        self.running = []
        self.preemptions = 0
        self.queried_tokens = 0
        self.hit_tokens = 0

    def add(self, sequence):
        sequence.hashes = chain(sequence.tokens, self.block_tokens, sequence.seed)
        self.waiting.append(sequence)

    def abort(self, id):
        """Gives a request up, wherever it is; false when it is not here any more."""
        for sequence in self.waiting:
            if sequence.id == id:
                self.waiting.remove(sequence)
                return True
        for sequence in self.running:
            if sequence.id == id:
                self._leave(sequence)
                return True
        return False

    def plan(self, now):
        """The next step: every decoding sequence, and as much prefill as fits, first come first served."""
        budget, decodes, prefills = self.step_tokens, [], []
        for sequence in list(self.running):
            if sequence not in self.running or budget == 0:
                continue
            end = min(len(sequence.tokens), sequence.computed + budget)
            if not self._make_room(sequence, end):
                continue
            chunk = Chunk(sequence, sequence.computed, end)
            (decodes if sequence.decoding else prefills).append(chunk)
            budget -= end - sequence.computed
        while self.waiting and len(self.running) < self.slots and budget > 0:
            chunk = self._admit(self.waiting[0], budget, now)
            if chunk is None:
                break
            prefills.append(chunk)
            budget -= chunk.end - chunk.start
        # Whoever was sent away to make room is not in the step.
        here = set(map(id, self.running))
        there = lambda chunks: [chunk for chunk in chunks if id(chunk.sequence) in here]
        return Step(there(decodes), there(prefills))

    def finish(self, step, sampled):
        """The step is computed. `sampled` has the next token of each chunk that samples, in the order of the step.

        Returns the new tokens, those who are done, and the blocks that are new.
        """
        out, done, stored = [], [], []
        sampled = iter(sampled)
        for chunk in itertools.chain(step.decodes, step.prefills):
            sequence, samples = chunk.sequence, chunk.samples
            sequence.computed = chunk.end
            stored.extend(self._name(sequence))
            if samples:
                token = next(sampled)
                sequence.tokens.append(token)
                out.append((sequence, token))
                if sequence.generated >= sequence.most_tokens:
                    done.append(sequence)
                    self._leave(sequence)
        return out, done, stored

    def reset(self):
        self.pool.clear()

    def _admit(self, sequence, budget, now):
        full = (len(sequence.tokens) - 1) // self.block_tokens
        found = self.pool.match(sequence.hashes[:full])
        start = len(found) * self.block_tokens
        end = min(len(sequence.tokens), start + budget)
        needed = -(-end // self.block_tokens) - len(found)
        # One block for the token that comes out, so that nobody is admitted only to be sent away again.
        if needed + 1 > self.pool.unused - self.pool.unused_among(found) and self.running:
            return None
        self.pool.use(found)
        sequence.blocks = found
        if not self._make_room(sequence, end):
            self.pool.let_go(sequence.blocks)
            sequence.blocks = []
            return None
        self.waiting.popleft()
        self.running.append(sequence)
        sequence.computed, sequence.named = start, start // self.block_tokens
        if sequence.cached_tokens is None:
            sequence.cached_tokens, sequence.queued_s = start, now - sequence.arrived
            self.queried_tokens += sequence.prompt_tokens
            self.hit_tokens += start
        return Chunk(sequence, start, end)

    def _make_room(self, sequence, end):
        """Blocks for the tokens up to `end`; the youngest others are sent away for them. False when it is gone itself."""
        while len(sequence.blocks) * self.block_tokens < end:
            block = self.pool.take()
            if block is not None:
                sequence.blocks.append(block)
                continue
            if not self.running:
                return False
            youngest = self.running[-1]
            self._leave(youngest)
            self.preemptions += 1
            youngest.computed = youngest.named = 0
            self.waiting.appendleft(youngest)
            if youngest is sequence:
                return False
        return True

    def _leave(self, sequence):
        self.running.remove(sequence)
        self.pool.let_go(sequence.blocks)
        sequence.blocks = []

    def _name(self, sequence):
        """Names the blocks that are full now, and tells of those that are new, in runs."""
        runs, run, size = [], None, self.block_tokens
        while (sequence.named + 1) * size <= sequence.computed:
            at = sequence.named
            tokens = sequence.tokens[at * size : (at + 1) * size]
            if at == len(sequence.hashes):
                sequence.hashes.append(extend(sequence.hashes[-1] if at else sequence.seed, tokens))
            sequence.named += 1
            if not self.pool.name(sequence.blocks[at], sequence.hashes[at]):
                run = None
                continue
            if run is None:
                run = Stored(sequence.hashes[at - 1] if at else None, [], [])
                runs.append(run)
            run.hashes.append(sequence.hashes[at])
            run.tokens.extend(tokens)
        return runs
