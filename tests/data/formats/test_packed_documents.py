"""Packed documents: best fit, every token once, no traces of neighbours."""

import importlib
import itertools

import numpy as np
import pytest

from bertjax.data import best_fit
from bertjax.data.sequence_template import SequenceTemplate
from bertjax.errors import UserError

PackedDocuments = importlib.import_module("bertjax.data.formats.packed-documents").PackedDocuments
CLS, SEP, PAD = 90_000, 90_001, 90_002


@pytest.fixture
def corpus(memory_corpus, varied_documents):
    """61 documents of 1 to 200 tokens."""
    return memory_corpus(varied_documents(61, max_length=9), record_tokens=50)


def make(corpus, **options):
    fields = {"max_seq_length": 47, "seed": 0, "specials": SequenceTemplate(CLS, SEP, PAD)}
    return PackedDocuments(corpus, **fields | options)


def naive_best_fit(sizes, length):
    """Best-fit decreasing, a piece at a time."""
    rooms = []
    for size in sorted(sizes, reverse=True):
        fitting = [room for room in rooms if room >= size]
        room = min(fitting, default=length)
        if fitting:
            rooms.remove(room)
        rooms.append(room - size)
    return sorted(rooms)


@pytest.mark.parametrize("length", [1, 7, 30])
def test_the_plan_is_that_of_best_fit_decreasing(length):
    draw = np.random.default_rng(length)
    for count in (0, 1, 12, 400):
        sizes = draw.integers(1, length + 1, count)
        plan = best_fit.plan(np.bincount(sizes, minlength=length + 1))
        rows = np.repeat(plan.sizes.sum(axis=1), np.diff(plan.starts))
        assert sorted((length - rows).tolist()) == naive_best_fit(sizes.tolist(), length)
        used = {size: [] for size in range(1, length + 1)}
        for number, (start, stop) in enumerate(itertools.pairwise(plan.starts)):
            for size, first, step in zip(
                plan.sizes[number], plan.first[number], plan.step[number], strict=True
            ):
                if size:
                    used[size] += (first + step * np.arange(stop - start)).tolist()
        for size, numbers in used.items():
            assert sorted(numbers) == list(range((sizes == size).sum()))


def texts(batch):
    """(row, pack) -> tokens without specials; checks the special tokens around them."""
    found = {}
    for row in range(len(batch["input_ids"])):
        ids, packs = batch["input_ids"][row], batch["pack_ids"][row]
        size = int((packs > 0).sum())
        assert (ids[size:] == PAD).all()
        assert (packs[:size] == np.sort(packs[:size])).all()
        for pack in range(1, packs.max() + 1):
            piece = ids[packs == pack]
            assert (piece[0], piece[-1]) == (CLS, SEP)
            assert batch["position_ids"][row][packs == pack].tolist() == list(range(len(piece)))
            found[row, pack] = piece[1:-1].tolist()
    return found


def test_every_token_is_in_one_row_and_documents_are_cut_only_if_they_must(corpus):
    packed = make(corpus)
    sizes = [sum(lengths) for lengths in corpus.documents]
    ends = np.cumsum(sizes)
    for epoch in (0, 5):
        batch = packed.build(epoch, np.arange(packed.num_examples))
        assert np.array_equal(batch["attention_mask"], batch["pack_ids"] > 0)
        pieces = sorted(texts(batch).values())
        assert list(itertools.chain(*pieces)) == list(range(sum(sizes)))
        for piece in pieces:
            assert piece == list(range(piece[0], piece[-1] + 1))
            document = np.searchsorted(ends, piece[0], side="right")
            assert np.searchsorted(ends, piece[-1], side="right") == document
            assert sizes[document] > 45 or len(piece) == sizes[document]
        assert batch["attention_mask"].mean() > 0.98


def test_epochs_have_other_cuts_and_neighbours(corpus):
    packed = make(corpus)
    first, second = (texts(packed.build(epoch, np.arange(packed.num_examples))) for epoch in (0, 1))
    assert set(map(tuple, first.values())) != set(map(tuple, second.values()))
    assert first != second
    static = make(corpus, resegment=False)
    rows = np.arange(static.num_examples)
    assert texts(static.build(0, rows)) == texts(static.build(1, rows))
    assert not np.array_equal(static.order(0, rows), static.order(1, rows))


def test_a_row_does_not_depend_on_the_batch(corpus):
    """Invariant 2."""
    packed = make(corpus)
    whole = packed.build(3, np.arange(packed.num_examples))
    some = packed.build(3, np.array([4, 1]))
    for name, rows in some.items():
        np.testing.assert_array_equal(rows, whole[name][[4, 1]])


def test_sentences_and_pieces_start_words(corpus):
    starts = np.zeros(PAD + 1, bool)
    packed = make(corpus, word_starts=starts)
    batch = packed.build(0, np.arange(packed.num_examples))
    firsts = np.append(0, np.cumsum(list(itertools.chain(*corpus.documents))))[:-1]
    ids = batch["input_ids"]
    expected = np.isin(ids, firsts) & batch["attention_mask"]
    expected[:, 1:] |= ids[:, :-1] == CLS
    np.testing.assert_array_equal(batch["word_starts"], expected)


def test_special_tokens_at_other_places(corpus):
    packed = make(corpus, specials=SequenceTemplate(CLS, SEP, PAD, cls_last=True))
    batch = packed.build(0, np.arange(3))
    last = np.diff(batch["pack_ids"], append=0, axis=1) != 0
    assert (batch["input_ids"][last] == CLS).all()
    np.testing.assert_array_equal(batch["segment_ids"] == 2, last)
    without = make(corpus, specials=SequenceTemplate(None, SEP, PAD))
    ids = without.build(0, np.arange(3))["input_ids"]
    assert (ids != CLS).all()
    with pytest.raises(UserError, match=r"packed-documents requires a tokenizer with \[CLS\] or"):
        make(corpus, specials=SequenceTemplate(None, None, PAD))
    with pytest.raises(UserError, match="max_seq_length: got 2, expected >= 3"):
        make(corpus, max_seq_length=2)
