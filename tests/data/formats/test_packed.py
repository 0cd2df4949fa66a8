"""The packed formats: windows over documents, each token once."""

import numpy as np
import pytest

from bertjax.data.formats.packed import TokenWindows
from bertjax.errors import UserError
from bertjax.tokenizers import tokenizer
from bertjax.tokenizers.special_tokens import end_of_text

SEP, PAD = 90_000, 90_001


@pytest.fixture
def corpus(memory_corpus, varied_documents):
    return memory_corpus(varied_documents(7, max_length=8), record_tokens=50)


@pytest.fixture
def documents(corpus):
    """The tokens of each document."""
    sizes = [sum(lengths) for lengths in corpus.documents]
    return [part.tolist() for part in np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])]


def make(corpus, **options):
    fields = {"max_seq_length": 16, "seed": 0, "separator": SEP, "pad_id": PAD}
    return TokenWindows(corpus, **fields | options)


def stream(documents):
    return [token for document in documents for token in [*document, SEP]]


def test_windows_follow_the_stream_and_share_one_token(corpus, documents):
    windows = make(corpus)
    text = stream(documents)
    assert windows.num_examples == -(-len(text) // 15)
    batch = windows.build(0, np.arange(windows.num_examples))
    ids = batch["input_ids"]
    assert batch["attention_mask"].all()
    np.testing.assert_array_equal(ids[1:, 0], ids[:-1, -1])
    read = np.concatenate([ids[0], *ids[1:, 1:]])
    circle = text * 2
    entry = next(i for i in range(len(text)) if circle[i : i + 40] == read[:40].tolist())
    np.testing.assert_array_equal(read[: len(text)], circle[entry : entry + len(text)])


def test_an_epoch_has_another_offset_and_order(corpus):
    windows = make(corpus)
    first, second = (windows.build(epoch, np.arange(3))["input_ids"] for epoch in (0, 1))
    assert (first != second).any()
    rank = np.arange(windows.num_examples)
    orders = [windows.order(epoch, rank) for epoch in (0, 1)]
    assert (orders[0] != orders[1]).any()
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), rank)


def test_an_example_does_not_depend_on_the_batch(corpus):
    windows = make(corpus, separate_documents=True)
    whole = windows.build(3, np.arange(windows.num_examples))
    some = windows.build(3, np.array([4, 1]))
    for name, rows in some.items():
        np.testing.assert_array_equal(rows, whole[name][[4, 1]])


def test_positions_restart_at_the_separator_of_a_separated_document(corpus):
    windows = make(corpus, separate_documents=True, max_seq_length=40)
    batch = windows.build(0, np.arange(windows.num_examples))
    for ids, packed_segment_ids, positions in zip(
        batch["input_ids"], batch["pack_ids"], batch["position_ids"], strict=True
    ):
        pack, position = 1, 0
        for at, token in enumerate(ids):
            if token == SEP:
                pack, position = pack + 1, 0
            assert (packed_segment_ids[at], positions[at]) == (pack, position)
            position += 1


def test_without_a_separator_documents_follow_directly(corpus, documents):
    windows = make(corpus, separator=None)
    assert windows.num_examples == -(-sum(map(len, documents)) // 15)
    assert (windows.build(0, np.arange(5))["input_ids"] != SEP).all()
    with pytest.raises(UserError, match="packed-apart requires a tokenizer with"):
        make(corpus, separator=None, separate_documents=True)


def test_a_corpus_shorter_than_a_window_is_padded(corpus, documents):
    total = len(stream(documents))
    batch = make(corpus, max_seq_length=total + 5).build(0, np.zeros(1, np.int64))
    assert batch["attention_mask"].sum() == total
    assert (batch["input_ids"][:, total:] == PAD).all()


def test_a_window_of_one_token_is_refused(corpus):
    with pytest.raises(UserError, match="max_seq_length: got 1, expected >= 2"):
        make(corpus, max_seq_length=1)


def test_the_separator_is_the_end_of_text_or_a_sep(shared_data):
    assert end_of_text(tokenizer.load(shared_data / "vocab/gpt2")) == 50256
    bert = tokenizer.load(shared_data / "vocab/bert-base-uncased")
    assert end_of_text(bert) == bert.sep_id
