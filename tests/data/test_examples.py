"""Examples made of sentences: invariants of all formats, pairs, epochs, and refused options."""

import pathlib
import sys

import numpy as np
import pytest

from bertjax.errors import UserError

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from sentence_examples import PAD, SEP, make, segments_of, whole_epoch

PAIRS = ("next", "order", "none")
ALL_KINDS = [
    ("full-sentences", "none"),
    ("doc-sentences", "none"),
    *((format, pair) for format in ("segment-pair", "sentence-pair") for pair in PAIRS),
]


@pytest.mark.parametrize(("format", "pair"), ALL_KINDS)
def test_an_example_is_a_function_of_seed_epoch_and_number(
    memory_corpus, varied_documents, format, pair
):
    corpus = memory_corpus(varied_documents(31), record_tokens=97)
    examples = make(corpus, format, pair)
    chosen = np.random.default_rng(1).permutation(examples.num_examples)[:40]
    together = examples.build(3, chosen)
    again = make(memory_corpus(varied_documents(31), record_tokens=97), format, pair)
    for row, number in enumerate(chosen):
        alone = again.build(3, np.array([number]))
        for key, values in alone.items():
            assert np.array_equal(values[0], together[key][row]), (key, number)
    other = make(corpus, format, pair, seed=6).build(3, chosen)
    assert not np.array_equal(other["input_ids"], together["input_ids"])


@pytest.mark.parametrize(("format", "pair"), ALL_KINDS)
def test_examples_do_not_depend_on_record_boundaries(memory_corpus, varied_documents, format, pair):
    documents = varied_documents(31)
    whole = whole_epoch(make(memory_corpus(documents, record_tokens=10**6), format, pair))
    cut = whole_epoch(make(memory_corpus(documents, record_tokens=53), format, pair))
    for key, values in whole.items():
        assert np.array_equal(values, cut[key]), key


@pytest.mark.parametrize(("format", "pair"), ALL_KINDS)
def test_an_example_reads_few_records(memory_corpus, varied_documents, format, pair):
    corpus = memory_corpus(varied_documents(200), record_tokens=200)
    make(corpus, format, pair).build(0, np.array([17]))
    # 7 windows of 64 tokens span at most 4 records of 171 to 200; a pair may read two places. In
    # full-sentences documents end records earlier.
    assert 0 < len(corpus.read_records) <= 12


@pytest.mark.parametrize("format", ["segment-pair", "sentence-pair"])
def test_half_of_the_next_sentences_are_random(memory_corpus, format):
    corpus = memory_corpus([[7] * 40] * 30)
    examples = make(corpus, format, "next")
    labels = whole_epoch(examples)["pair_label"]
    assert abs(labels.sum() - examples.num_examples / 2) <= 1
    assert not np.array_equal(labels, whole_epoch(examples, 1)["pair_label"])


def test_lone_sentences_always_get_a_random_partner(memory_corpus):
    corpus = memory_corpus([[7]] * 20 + [[5] * 30])
    for format in ("segment-pair", "sentence-pair"):
        batch = whole_epoch(make(corpus, format, "next"))
        pairs = segments_of(batch)
        lone = [
            label for (a, _), label in zip(pairs, batch["pair_label"], strict=True) if a[0] < 140
        ]
        assert len(lone) >= 20
        assert all(lone)


def test_order_swaps_half_of_the_pairs(memory_corpus, varied_documents):
    corpus = memory_corpus(varied_documents(200))
    for format in ("segment-pair", "sentence-pair"):
        examples = make(corpus, format, "order")
        batch = whole_epoch(examples)
        assert len(batch["pair_label"]) > 500
        for (a, b), label in zip(segments_of(batch), batch["pair_label"], strict=True):
            first, second = (b, a) if label else (a, b)
            assert first[0] < second[0]
            assert second[0] - first[-1] <= 64  # a truncated pair has a gap at most
        share = batch["pair_label"].mean()
        assert abs(share - 0.5) < 2.5 / np.sqrt(len(batch["pair_label"]))


@pytest.mark.parametrize("format", ["full-sentences", "doc-sentences", "segment-pair"])
def test_epochs_leave_out_few_and_different_tokens(memory_corpus, varied_documents, format):
    documents = [lengths for lengths in varied_documents(150) if len(lengths) > 1]
    corpus = memory_corpus(documents, record_tokens=400)
    examples = make(corpus, format, max_seq_length=131, short_seq_prob=0.0)
    seen = np.zeros(corpus.num_tokens, int)
    for epoch in range(8):
        ids = whole_epoch(examples, epoch)["input_ids"]
        counts = np.bincount(ids[ids < corpus.num_tokens], minlength=corpus.num_tokens)
        assert (counts == 0).mean() < 0.03
        assert np.maximum(counts - 1, 0).mean() < 0.15
        seen += counts
    assert (seen == 0).mean() < 0.0005


def test_long_sentences_are_split_not_lost(memory_corpus):
    corpus = memory_corpus([[3, 500, 2], [200]])
    for format in ("full-sentences", "doc-sentences", "segment-pair"):
        ids = whole_epoch(make(corpus, format))["input_ids"]
        assert np.isin(np.arange(705), ids).mean() > 0.8
        assert (ids < 705).sum(axis=1).max() <= 65


@pytest.mark.parametrize(("format", "pair"), ALL_KINDS)
def test_frozen_examples_are_the_same_in_every_epoch(memory_corpus, varied_documents, format, pair):
    corpus = memory_corpus(varied_documents(31))
    frozen, anew = (make(corpus, format, pair, resegment=flag) for flag in (False, True))
    first, later = whole_epoch(frozen, 0), whole_epoch(frozen, 7)
    assert all(np.array_equal(first[key], later[key]) for key in first)
    assert np.array_equal(first["input_ids"], whole_epoch(anew, 0)["input_ids"])
    assert not np.array_equal(first["input_ids"], whole_epoch(anew, 7)["input_ids"])


def test_words_start_by_the_vocabulary_and_at_every_sentence(memory_corpus):
    corpus = memory_corpus([[3, 2], [4]])
    table = np.zeros(12, bool)
    table[[1, 9, 10, 11]] = True
    examples = make(
        corpus,
        "full-sentences",
        max_seq_length=14,
        cls_id=9,
        sep_id=10,
        pad_id=11,
        word_starts=table,
    )
    row = examples.build(0, np.array([0]))
    starts = dict(zip(row["input_ids"][0].tolist(), row["word_starts"][0].tolist(), strict=True))
    sentences, table_only, inside = (0, 3, 5), (1, 9, 10, 11), (2, 4, 6, 7, 8)
    assert {token: starts[token] for token in sentences + table_only} == dict.fromkeys(
        sentences + table_only, True
    )
    assert not any(starts[token] for token in inside)
    assert row["word_starts"].dtype == bool


def test_tokenizers_without_special_tokens(memory_corpus):
    corpus = memory_corpus([[2], [3]])
    bare = make(corpus, "full-sentences", cls_id=None, sep_id=None, max_seq_length=5)
    row = bare.build(0, np.array([0]))["input_ids"][0].tolist()
    assert row in ([0, 1, 2, 3, 4], [2, 3, 4, 0, 1])
    ends = make(corpus, "doc-sentences", cls_id=None, max_seq_length=4)
    assert whole_epoch(ends)["input_ids"].tolist() == [[0, 1, SEP, PAD], [2, 3, 4, SEP]]
    with pytest.raises(UserError, match=r"segment-pair: got a tokenizer that lacks \[CLS\]"):
        make(corpus, "segment-pair", cls_id=None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"format": "segment-pair", "pair": "nxt"}, "did you mean 'next'"),
        ({"format": "doc-sentences", "pair": "order"}, "which has one segment"),
        ({"format": "doc-sentences", "max_seq_length": 2}, "leaves 0 tokens"),
        ({"format": "segment-pair", "max_seq_length": 4}, "leaves 1 tokens"),
        (
            {"format": "segment-pair", "short_seq_prob": 1.5},
            "got 1.5, expected 0 to 1",
        ),
        ({"format": "sentence-pair", "short_seq_prob": 0.1}, "got 0.1 with sentence-pair"),
    ],
)
def test_incompatible_options_are_refused(memory_corpus, fields, message):
    corpus = memory_corpus([[3, 4], [5, 6]])
    with pytest.raises(UserError, match=message) as caught:
        make(corpus, **fields)
    assert "\n" not in str(caught.value)


def test_too_small_corpora_are_refused(memory_corpus):
    with pytest.raises(UserError, match="one document in its split"):
        make(memory_corpus([[3, 4, 5]]), "segment-pair", "next")
    with pytest.raises(UserError, match="no document has two sentences"):
        make(memory_corpus([[3], [4]]), "segment-pair", "order")


def test_an_index_of_another_corpus_is_refused(memory_corpus):
    corpus = memory_corpus([[3, 4], [5, 6]])
    corpus.tokens = corpus.tokens + 1
    with pytest.raises(UserError, match="shards and index are from different corpora"):
        whole_epoch(make(corpus, "doc-sentences"))


def test_preview(memory_corpus):
    examples = make(memory_corpus([[2, 2], [3, 3]]), "sentence-pair", "order", max_seq_length=12)
    shown = examples.preview(5)
    assert [row["example_id"] for row in shown] == [0, 1]
    for row in shown:
        assert PAD not in row["input_ids"]
        assert len(row["input_ids"]) == len(row["segment_ids"])
        assert row["pair_label"] == int(row["input_ids"][1] in (2, 7))
