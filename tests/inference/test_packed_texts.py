"""Texts that share rows: each once and in one piece, in few shapes with little padding."""

import numpy as np
import pytest

from bertjax.inference import packed_texts
from bertjax.inference.packed_texts import TEXTS_PER_ROW
from bertjax.tasks.batches import PADDING
from bertjax.tasks.sequences import Pairs

RANDOM = np.random.default_rng(0)
SENTENCES = np.clip(RANDOM.lognormal(3, 0.7, 1000).astype(int) + 3, 3, 250)
OPTIONS = {"max_rows": 16, "max_tokens": 1000, "num_groups": 1}


def some_pairs(lengths):
    """Every token of text i is 100 + i."""
    lengths = np.asarray(lengths)
    return Pairs(
        tokens=np.repeat(np.arange(len(lengths), dtype=np.int32) + 100, lengths),
        starts=np.cumsum(lengths) - lengths,
        lengths=lengths,
        first_lengths=lengths,
        pad_id=0,
    )


def make(lengths, local_rows=lambda size: slice(None), **changes):
    options = OPTIONS | {"local_rows": local_rows} | changes
    return list(packed_texts.batches(some_pairs(lengths), 250, **options))


def read_rows(texts, batch, num_groups):
    """The rows of a batch: the token of each slot, -1 for padding."""
    length = batch["input_ids"].shape[1]
    groups = zip(
        np.split(texts, num_groups),
        np.split(batch["input_ids"], num_groups),
        np.split(batch["packed_tokens"], num_groups),
        strict=True,
    )
    for numbers, ids, packed in groups:
        slots = packed.reshape(-1)
        member, position = np.divmod(slots, length)
        rows = np.where(slots < 0, -1, ids[member, position])
        assert (rows[slots >= 0] == 100 + numbers[member][slots >= 0]).all()
        yield from zip(rows.reshape(-1, length), position.reshape(-1, length), strict=True)


@pytest.mark.parametrize("num_groups", [1, 4])
@pytest.mark.parametrize("lengths", [SENTENCES, np.full(300, 3), [250] * 20 + [3] * 400, [7]])
def test_every_text_is_in_one_row_once_in_one_piece(lengths, num_groups):
    seen = []
    for texts, batch in make(lengths, num_groups=num_groups):
        in_rows = []
        for row, positions in read_rows(texts, batch, num_groups):
            found = np.unique(row[row >= 0]) - 100
            assert len(found) <= TEXTS_PER_ROW
            for text in found:
                (slots,) = np.nonzero(row == 100 + text)
                np.testing.assert_array_equal(slots, slots[0] + np.arange(lengths[text]))
                np.testing.assert_array_equal(positions[slots], np.arange(lengths[text]))
            in_rows += found.tolist()
        assert sorted(in_rows) == sorted(texts[texts != PADDING].tolist())
        seen += in_rows
    assert sorted(seen) == list(range(len(lengths)))


def test_few_shapes_with_little_padding_and_limited_size():
    batches = [batch for _, batch in make(SENTENCES)]
    sizes = [batch["packed_tokens"].size for batch in batches]
    assert len({batch["input_ids"].shape for batch in batches}) == 3
    assert sum(sizes) < 1.05 * SENTENCES.sum()
    assert max(sizes) <= 1000
    lengths = [batch["input_ids"].shape[1] for batch in batches]
    assert lengths == sorted(lengths, reverse=True)
    many = [batch["input_ids"].shape[1] for _, batch in make(np.tile(SENTENCES, 2))]
    assert set(many) == {*lengths, lengths[-1] // 2}
    assert make(SENTENCES, max_tokens=0)[-1][1]["packed_tokens"].size == 16 * lengths[-1]


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (6, 2), (40, 15)])
def test_few_texts_have_few_rows(count, rows):
    ((_, batch),) = make([20] * count)
    assert batch["packed_tokens"].size == rows * 64


def test_hosts_build_their_own_part():
    whole = make(SENTENCES, num_groups=2)
    halves = [
        make(SENTENCES, num_groups=2, local_rows=lambda size, h=half: np.arange(size)[h])
        for half in (slice(None, None, 2), slice(1, None, 2))
    ]
    for (texts, batch), *parts in zip(whole, *halves, strict=True):
        for start, (same, part) in enumerate(parts):
            np.testing.assert_array_equal(same, texts)
            for name in batch:
                np.testing.assert_array_equal(part[name], batch[name][start::2])
