"""Blocks and batches, on a model whose answers betray any block that is not what it should be."""

import random

import pytest

from engine.batch import Batch, Sequence
from engine.blocks import chain
from engine.ledger import Ledger

WORDS, OPENERS = list(range(1000, 2000)), list(range(100))


def settled(batch):
    """Nobody is here: every block is unused, and what is cached is found."""
    assert not batch.running and not batch.waiting
    assert batch.pool.unused == batch.pool.count
    assert all(users == 0 for users in batch.pool._users)


class Told:
    """What someone knows who hears events alone."""

    def __init__(self):
        self.blocks = {}

    def hear(self, batch, stored):
        for name in batch.pool.evicted:
            del self.blocks[name]
        batch.pool.evicted = []
        for run in stored:
            above = run.parent
            assert len(run.tokens) == 32 * len(run.hashes)
            for name in run.hashes:
                assert name not in self.blocks
                self.blocks[name] = above
                above = name
        assert set(self.blocks) == set(batch.pool._holder)


def answers(sequences, kv_blocks, slots, step_tokens, together, model=None, abort=None):
    batch, told, said = Batch(kv_blocks, 32, slots, step_tokens), Told(), {}
    model = model or Ledger(kv_blocks, 32, WORDS, OPENERS)
    waiting, steps = list(sequences), 0
    while waiting or batch.waiting or batch.running:
        if waiting and (together or not batch.running):
            batch.add(waiting.pop(0))
        steps += 1
        if abort and steps % 7 == 0 and batch.running:
            batch.abort(abort.choice(batch.running).id)
        step = batch.plan(float(steps))
        assert step.prefill_tokens + len(step.decodes) <= step_tokens
        assert len(batch.running) <= slots
        _, done, stored = batch.finish(step, model.run(step))
        told.hear(batch, stored)
        said.update((sequence.id, sequence.tokens[sequence.prompt_tokens :]) for sequence in done)
    settled(batch)
    return said, batch


def conversations(seed, count):
    """Prompts that begin alike, each longer than the last of its family."""
    chance, families, prompts = random.Random(seed), [], []
    for _ in range(count):
        if not families or chance.random() < 0.3:
            families.append([chance.randrange(900) for _ in range(chance.randrange(1, 200))])
        family = chance.choice(families)
        family.extend(chance.randrange(900) for _ in range(chance.randrange(0, 90)))
        prompts.append(list(family))
    return [Sequence(n, prompt, len(prompt), 1 + n % 40) for n, prompt in enumerate(prompts)]


@pytest.mark.parametrize("seed", range(6))
def test_answers_do_not_depend_on_company_hits_chunks_or_want_of_room(seed):
    count = 40
    alone = {}
    for sequence in conversations(seed, count):
        alone |= answers([sequence], 200, 1, 4096, together=False)[0]
    for kv_blocks, slots, step_tokens in ((4000, 8, 4096), (200, 8, 64), (90, 8, 48), (80, 3, 33)):
        said, batch = answers(conversations(seed, count), kv_blocks, slots, step_tokens, together=True)
        assert said == alone
        if kv_blocks == 4000:
            assert batch.hit_tokens > 0 and batch.preemptions == 0


def test_those_who_came_last_are_sent_away_and_come_back():
    sequences = [Sequence(n, [n] * 60, 60, 100) for n in range(4)]
    said, batch = answers(sequences, 12, 4, 512, together=True)
    assert batch.preemptions > 0
    assert {len(answer) for answer in said.values()} == {100}


def test_what_is_given_up_leaves_nothing():
    said, _ = answers(conversations(3, 60), 120, 6, 64, together=True, abort=random.Random(1))
    assert len(said) < 60


def test_a_hit_leaves_one_token_to_compute():
    prompt = list(range(64))
    said, batch = answers([Sequence(1, list(prompt), 64, 3), Sequence(2, list(prompt), 64, 3)], 50, 1, 512, together=False)
    assert said[1] == said[2]
    assert batch.hit_tokens == 32


def test_a_salt_keeps_prompts_apart():
    prompt = list(range(100))
    sequences = [Sequence(n, list(prompt), 100, 3, seed=n) for n in (1, 2)]
    _, batch = answers(sequences, 50, 1, 512, together=False)
    assert batch.hit_tokens == 0


def test_the_least_recently_used_end_goes_first():
    batch = Batch(8, 32, 1, 512)
    model = Ledger(8, 32, WORDS, OPENERS)

    def ask(id, tokens):
        batch.add(Sequence(id, tokens, len(tokens), 1))
        step = batch.plan(0.0)
        batch.finish(step, model.run(step))

    first, second = [1] * 96, [2] * 96
    ask(1, list(first))
    ask(2, list(second))
    ask(3, list(first) + [5])
    batch.pool.evicted = []
    ask(4, [3] * 100)
    # Two blocks were free; of the six that were cached, the second's end had to go.
    assert len(batch.pool.match(chain(first, 32))) == 3
    assert len(batch.pool.match(chain(second, 32))) == 1
    assert batch.pool.evicted == list(reversed(chain(second, 32)[1:]))


def test_a_reset_forgets_what_nobody_uses():
    _, batch = answers(conversations(1, 10), 400, 4, 512, together=True)
    assert batch.pool.cached > 0
    batch.reset()
    assert batch.pool.cached == 0 and len(batch.pool.evicted) > 0
