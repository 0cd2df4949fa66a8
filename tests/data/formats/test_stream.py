"""The stream formats: each token once, rows that continue documents, O(1) seeking."""

import numpy as np
import pytest

from bertjax.data.formats.stream import Streams
from bertjax.data.pipeline import batches
from bertjax.data.sequence_template import SequenceTemplate
from bertjax.errors import UserError

CLS, SEP, PAD = 9001, 9002, 9000
L = 13


@pytest.fixture
def corpus(memory_corpus, varied_documents):
    return memory_corpus(varied_documents(23), record_tokens=50)


def make(corpus, batch_size=3, *, num_segments=1, cls_last=True, seed=5, **fields):
    specials = SequenceTemplate(CLS, SEP, PAD, cls_last)
    return Streams(
        corpus,
        specials,
        num_segments=num_segments,
        max_seq_length=L,
        batch_size=batch_size,
        seed=seed,
        **fields,
    )


def text_of(batch):
    return [
        ids[mask].tolist()
        for ids, mask in zip(batch["input_ids"], batch["memory_mask"], strict=True)
    ]


@pytest.mark.parametrize("num_segments", [1, 2])
@pytest.mark.parametrize("epoch", [0, 1])
def test_an_epoch_has_every_token_once(corpus, num_segments, epoch):
    streams = make(corpus, 1, num_segments=num_segments)
    batch = streams.build(epoch, np.arange(streams.num_examples))
    read = np.concatenate(text_of(batch))
    np.testing.assert_array_equal(np.sort(read), np.arange(corpus.num_tokens))


def test_rows_continue_documents(corpus):
    """The segments of a row, joined while it continues, are contiguous text of the corpus."""
    streams = make(corpus)
    seen, before = np.zeros(streams.batch_size, int), np.zeros(streams.batch_size, int)
    for step in range(streams.steps_per_epoch):
        places = step * streams.batch_size + np.arange(streams.batch_size)
        examples = streams.order(0, places)
        batch = streams.build(0, examples)
        first = [tokens[0] for tokens in text_of(batch)]
        last = [tokens[-1] for tokens in text_of(batch)]
        if step:
            # Token ids are positions in the corpus: a continuation begins with the next number.
            follows = np.array(first) == before + 1
            assert follows[batch["is_continuation"]].all()
            seen += batch["is_continuation"]
        else:
            assert not batch["is_continuation"].any()
        before = np.array(last)
    assert (seen > 2).all()


def test_segments_are_full_except_at_the_ends_of_documents(corpus):
    streams = make(corpus, 1)
    batch = streams.build(0, np.arange(streams.num_examples))
    sizes = batch["memory_mask"].sum(axis=1)
    inner = batch["is_continuation"] & np.append(batch["is_continuation"][1:], False)
    assert inner.any()
    assert (sizes[inner] == L - 2).all()
    other = streams.build(1, np.arange(streams.num_examples))
    assert (other["memory_mask"].sum(axis=1) != sizes).any()


@pytest.mark.parametrize("cls_last", [True, False])
def test_the_layout_of_a_pair(corpus, cls_last):
    streams = make(corpus, 1, num_segments=2, cls_last=cls_last)
    batch = streams.build(0, np.arange(streams.num_examples))
    names = ("input_ids", "segment_ids", "attention_mask", "memory_mask")
    for ids, segments, mask, text in zip(*map(batch.get, names), strict=True):
        length = mask.sum()
        special = ids[:length][~text[:length]].tolist()
        assert special == ([SEP, SEP, CLS] if cls_last else [CLS, SEP, SEP])
        divided = np.flatnonzero(ids[:length] == SEP)[0] + 1
        expected = np.where(np.arange(length) < divided, 0, 1)
        if cls_last:
            expected[-1] = 2
        assert segments[:length].tolist() == expected.tolist()
        assert not segments[length:].any()
        assert (ids[length:] == PAD).all()


def test_a_step_does_not_depend_on_the_start_step(corpus):
    streams = make(corpus)
    steps = 2 * streams.steps_per_epoch + 3
    with batches(streams, batch_size=3, num_steps=steps) as whole:
        whole = dict(whole)
    for start in (1, streams.steps_per_epoch, steps - 1):
        with batches(streams, batch_size=3, start_step=start, num_steps=steps) as late:
            step, batch = next(late)
        assert step == start
        for name, values in batch.items():
            np.testing.assert_array_equal(values, whole[start][name])
    with batches(streams, batch_size=3, rows=np.array([2]), num_steps=1) as part:
        _, batch = next(part)
    np.testing.assert_array_equal(batch["input_ids"], whole[0]["input_ids"][[2]])


def test_documents_come_in_another_order_in_each_epoch(corpus):
    streams = make(corpus, 1)
    first, second = (streams.build(epoch, np.arange(5))["input_ids"] for epoch in (0, 1))
    assert (first != second).any()


def test_too_small_settings_are_one_line(corpus, memory_corpus):
    with pytest.raises(UserError, match="expected >= batch_size=999; lower batch_size"):
        make(corpus, 999)
    with pytest.raises(UserError, match="max_seq_length: got 3, which leaves 1 tokens"):
        Streams(
            corpus,
            SequenceTemplate(CLS, SEP, PAD),
            max_seq_length=3,
            batch_size=1,
            seed=0,
        )
