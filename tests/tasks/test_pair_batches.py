"""Batches for fine-tuning: every example once per epoch, seeking, any number of hosts."""

import itertools

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.tasks.batches import PADDING, PairBatches
from bertjax.tasks.sequences import Pairs

NUM_EXAMPLES = 103


def some_pairs(count=NUM_EXAMPLES):
    """Sequences of 3 to 40 tokens; every token of example i is 100 + i."""
    lengths = np.random.default_rng(0).integers(3, 41, count)
    return Pairs(
        tokens=np.repeat(np.arange(count, dtype=np.int32) + 100, lengths),
        starts=np.cumsum(lengths) - lengths,
        lengths=lengths,
        first_lengths=lengths // 2,
        pad_id=0,
    )


def make(**changes):
    fields = {
        "pairs": some_pairs(),
        "labels": np.arange(NUM_EXAMPLES, dtype=np.int32) % 5,
        "batch_size": 8,
        "padded_lengths": (8, 16, 40),
        "batches_per_group": 3,
        "seed": 5,
    }
    return PairBatches(**(fields | changes))


def steps(batches, count, start=0):
    return list(itertools.islice(batches.training_batches(start), count))


def equal(first, second):
    return first.keys() == second.keys() and all(
        np.array_equal(first[name], second[name]) for name in first
    )


@pytest.mark.parametrize("batches_per_group", [1, 3, 100])
def test_an_epoch_has_every_example_once(batches_per_group):
    batches = make(batches_per_group=batches_per_group)
    assert batches.batches_per_epoch == 13
    for epoch in range(3):
        seen = []
        for _, batch in steps(batches, 13, 13 * epoch):
            seen += batch["example_id"][batch["example_weight"] == 1].tolist()
        assert sorted(seen) == list(range(NUM_EXAMPLES))


def test_rows_have_their_example_and_minimal_padding():
    batches = make()
    for _, batch in steps(batches, 26):
        lengths = batch["attention_mask"].sum(axis=1)
        assert batch["input_ids"].shape[1] == next(n for n in (8, 16, 40) if n >= lengths.max())
        assert (lengths == batches.pairs.lengths[batch["example_id"]]).all()
        assert (batch["labels"] == batch["example_id"] % 5).all()
        ids = np.where(batch["attention_mask"], 100 + batch["example_id"][:, None], 0)
        assert (batch["input_ids"] == ids).all()


@pytest.mark.parametrize("group_size", [1, 4])
def test_seeking_equals_iterating(group_size):
    size = -(-NUM_EXAMPLES // group_size) * group_size
    batches = make(pairs=some_pairs(size), labels=np.arange(size), group_size=group_size)
    whole = steps(batches, 40)
    assert [step for step, _ in whole] == list(range(40))
    for start in (0, 1, 12, 13, 14, 27, 39):
        for (step, batch), (expected_step, expected) in zip(
            steps(batches, 40 - start, start), whole[start:], strict=True
        ):
            assert step == expected_step
            assert equal(batch, expected)


def test_hosts_build_their_rows_of_the_same_global_batch():
    batches = make()
    parts = [batches.training_batches(11, slice(4 * host, 4 * host + 4)) for host in (0, 1)]
    for step, batch in steps(batches, 5, 11):
        (first_step, first), (second_step, second) = (next(part) for part in parts)
        assert first_step == second_step == step
        joined = {name: np.concatenate([first[name], second[name]]) for name in first}
        assert equal(joined, batch)


def test_epochs_and_seeds_differ():
    batches, other = make(), make(seed=6)
    first, second = batches.epoch_order(0), batches.epoch_order(1)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, other.epoch_order(0))
    assert np.array_equal(first, make().epoch_order(0))


def test_the_shuffle_is_the_same_in_every_release():
    order = make(batches_per_group=1).epoch_order(2)
    assert order[0].tolist() == [5, 47, 13, 69, 77, 64, 9, 25]


def test_grouping_saves_padding():
    def padded(batches):
        return sum(batch["input_ids"].size for _, batch in steps(batches, 13))

    assert padded(make(batches_per_group=13)) < 0.8 * padded(make(batches_per_group=1))


def test_evaluation_has_every_example_once_and_the_shortest_first():
    batches = make()
    seen, widths = [], []
    for examples, batch in batches.evaluation_batches():
        real = examples != PADDING
        assert batch["input_ids"].shape[0] == 8
        assert (batch["example_weight"] == real).all()
        assert (batch["example_id"][real] == examples[real]).all()
        seen += examples[real].tolist()
        widths.append(batch["input_ids"].shape[1])
    assert sorted(seen) == list(range(NUM_EXAMPLES))
    assert widths == sorted(widths)
    assert set(widths) == {8, 16, 40}


def test_evaluation_and_unlabelled_examples_have_no_labels():
    _, batch = next(make().evaluation_batches())
    assert "labels" not in batch
    _, batch = next(make(labels=None).training_batches())
    assert "labels" not in batch


def test_padding_rows_have_weight_zero_and_tokens():
    short = [batch for _, batch in steps(make(), 13) if not batch["example_weight"].all()]
    (batch,) = short
    assert batch["example_weight"].sum() == NUM_EXAMPLES % 8
    assert batch["attention_mask"].any(axis=1).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"padded_lengths": (8, 16)},
            r"the longest sequence has 40 tokens; end with max_seq_length",
        ),
        (
            {"padded_lengths": (16, 8, 40)},
            r"padded_lengths=\(16, 8, 40\): expected distinct lengths in asc",
        ),
        ({"batch_size": 0}, r"batch_size=0 and batches_per_group=3: expected both >= 1"),
        ({"batches_per_group": 0}, r"batches_per_group=0: expected both >= 1"),
    ],
)
def test_incompatible_fields_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        make(**changes)
