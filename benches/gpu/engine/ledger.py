"""A model that needs no GPU: its cache holds tokens, and its next token is a hash of all that it finds there.

If one block were mixed up, taken too early or filled too late, its answers would be others. Tests run the engine on it.
"""

import time

import xxhash


class Ledger:
    replayed = False

    def __init__(self, kv_blocks, block_tokens, words, openers, step_ms=0.0):
        self.block_tokens, self.words, self.openers, self.step_s = block_tokens, words, openers, step_ms / 1e3
        self.slots = [None] * ((kv_blocks + 1) * block_tokens)

    def run(self, step):
        time.sleep(self.step_s)
        sampled = []
        for chunk in [*step.decodes, *step.prefills]:
            sequence = chunk.sequence
            for at in range(chunk.start, chunk.end):
                self.slots[self._slot(sequence, at)] = (at, sequence.tokens[at])
            if chunk.samples:
                read = [self.slots[self._slot(sequence, at)] for at in range(chunk.end)]
                number = xxhash.xxh3_64_intdigest(repr(read).encode())
                allowed = self.words if sequence.generated else self.openers
                sampled.append(allowed[number % len(allowed)])
        return sampled

    def _slot(self, sequence, at):
        return sequence.blocks[at // self.block_tokens] * self.block_tokens + at % self.block_tokens
