"""Batches of several tasks: one task per batch, every example once per epoch, seeking."""

import itertools

import numpy as np
import pytest

from bertjax.tasks.batches import PairBatches, TaskMixture
from bertjax.tasks.sequences import Pairs


def part(size, first, labels):
    lengths = np.full(size, 3)
    tokens = np.repeat(np.arange(first, first + size), 3).astype(np.int32)
    pairs = Pairs(tokens, np.cumsum(lengths) - 3, lengths, lengths, pad_id=0)
    return PairBatches(pairs, labels, 4, (4, 8))


@pytest.fixture(scope="module")
def mixture():
    classes, scores = np.arange(10, dtype=np.int32) % 2, np.linspace(0, 5, 23, dtype=np.float32)
    return TaskMixture((part(10, 100, classes), part(23, 200, scores)), seed=5)


def test_an_epoch_has_every_example_of_every_task_once(mixture):
    assert mixture.batches_per_epoch == 3 + 6
    steps = itertools.islice(mixture.training_batches(), 18)
    turns = []
    for epoch in (0, 1):
        seen, turn = {0: [], 1: []}, []
        for step, batch in itertools.islice(steps, 9):
            (task,) = set(batch["task_ids"].tolist())
            turn.append(task)
            assert step == 9 * epoch + len(turn) - 1
            assert np.all(batch["input_ids"][:, 0] // 100 == task + 1)
            real = batch["example_weight"] > 0
            seen[task] += batch["example_id"][real].tolist()
            assert batch["labels"].dtype == np.float32
        assert sorted(seen[0]) == list(range(10))
        assert sorted(seen[1]) == list(range(23))
        turns.append(turn)
    assert turns[0] != turns[1]


@pytest.mark.parametrize("start", [1, 8, 9, 14])
def test_a_batch_is_a_function_of_its_step(start, mixture):
    whole = dict(itertools.islice(mixture.training_batches(), 20))
    for step, batch in itertools.islice(mixture.training_batches(start), 4):
        for name, rows in batch.items():
            np.testing.assert_array_equal(rows, whole[step][name], err_msg=f"{name} {step}")
