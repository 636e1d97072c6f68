"""The KV cache's blocks: who uses which, what each contains, and which goes first when room is needed.

Nothing here touches a GPU. A block is a number; what it contains is known by a hash over all tokens up to its end.
"""

import collections
import itertools

import xxhash


def chain(tokens, block_tokens, seed=0):
    """The hash of each full block of a prompt, each over everything before it."""
    hashes, above = [], seed
    for at in range(0, len(tokens) - block_tokens + 1, block_tokens):
        above = extend(above, tokens[at : at + block_tokens])
        hashes.append(above)
    return hashes


def extend(above, tokens):
    digest = xxhash.xxh3_64(above.to_bytes(8, "little"))
    digest.update(b"".join(token.to_bytes(4, "little") for token in tokens))
    return digest.intdigest()


class BlockPool:
    """Blocks 1 to `count`; block 0 is nobody's, for rows of a batch that are only padding."""

    def __init__(self, count):
        self.count = count
        self._users = [0] * (count + 1)
        self._hash = [None] * (count + 1)
        self._holder = {}
        # Unused, the one to be taken next in front.
        self._unused = collections.OrderedDict((block, None) for block in range(1, count + 1))
        # Hashes that left since somebody asked.
        self.evicted = []

    @property
    def unused(self):
        return len(self._unused)

    @property
    def cached(self):
        return len(self._holder)

    def match(self, hashes):
        """The blocks of the longest prefix that is there. Nobody holds them yet: `use` them before anything else."""
        return list(itertools.takewhile(lambda block: block is not None, map(self._holder.get, hashes)))

    def unused_among(self, blocks):
        return sum(self._users[block] == 0 for block in blocks)

    def use(self, blocks):
        for block in blocks:
            if self._users[block] == 0:
                del self._unused[block]
            self._users[block] += 1

    def take(self):
        """An unused block, whose content is lost; none when every one is in use."""
        if not self._unused:
            return None
        block, _ = self._unused.popitem(last=False)
        self._forget(block)
        self._users[block] = 1
        return block

    def name(self, block, content):
        """The block is full. False when another one has the same content: that one stays the one to be found."""
        if content in self._holder:
            return False
        self._hash[block] = content
        self._holder[content] = block
        return True

    def let_go(self, blocks):
        """Of one sequence, in its order. Its end goes first: a beginning is of use to more."""
        for block in reversed(blocks):
            self._users[block] -= 1
            if self._users[block] == 0:
                self._unused[block] = None
                if self._hash[block] is None:
                    self._unused.move_to_end(block, last=False)

    def clear(self):
        """Forgets all content that nobody uses."""
        for block in self._unused:
            self._forget(block)

    def _forget(self, block):
        content, self._hash[block] = self._hash[block], None
        if content is not None:
            del self._holder[content]
            self.evicted.append(content)
