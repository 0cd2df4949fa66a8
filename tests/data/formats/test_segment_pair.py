"""Pairs of segments: whole sentences, random partners, splits, and short examples."""

import pathlib
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from sentence_examples import make, segments_of, whole_epoch


def test_segment_pairs_are_whole_sentences(memory_corpus, varied_documents):
    corpus = memory_corpus(varied_documents(53, max_length=20), record_tokens=300)
    spans = corpus.sentence_spans()
    begins = {begin for begin, _, _ in spans}
    ends = {end for _, end, _ in spans}
    examples = make(corpus, "segment-pair", "next")
    batch, truncated = whole_epoch(examples, 1), 0
    for (a, b), label in zip(segments_of(batch), batch["pair_label"], strict=True):
        assert a + b == [*range(a[0], a[-1] + 1), *range(b[0], b[-1] + 1)]
        documents = [corpus.document_at(part[0]) for part in (a, b)]
        assert (documents[0] != documents[1]) == label
        whole = a[0] in begins and b[0] in begins and a[-1] + 1 in ends and b[-1] + 1 in ends
        if label:
            assert whole or len(a) + len(b) == 64
            truncated += not whole
        else:
            # Two sentences have at most 40 tokens and fit: nothing is truncated.
            assert whole
            assert b[0] == a[-1] + 1
    assert truncated < 0.1 * len(batch["pair_label"])


def test_paired_documents_swap_their_second_segments(memory_corpus):
    # 200 documents of one window each: nothing else can be in an example.
    corpus = memory_corpus([[4] * 8] * 200)
    examples = make(corpus, "segment-pair", "next", short_seq_prob=0.0)
    assert examples.num_examples == 200
    batch = whole_epoch(examples)
    tokens = [token for pair in segments_of(batch) for part in pair for token in part]
    assert batch["pair_label"].sum() == 100
    assert sorted(tokens) == list(range(200 * 32))


def test_splits_are_equally_likely(memory_corpus):
    corpus = memory_corpus([[8] * 8] * 3000)
    examples = make(corpus, "segment-pair", "none", short_seq_prob=0.0)
    counts = np.bincount([len(a) // 8 for a, _ in segments_of(whole_epoch(examples))], minlength=8)
    assert counts[0] == 0
    assert np.abs(counts[1:] - 3000 / 7).max() < 5 * np.sqrt(3000 / 7)


@pytest.mark.parametrize("pair", ["next", "none"])
def test_a_fraction_of_the_examples_is_short(memory_corpus, pair):
    # Sentences of one token end everywhere, so lengths are exactly those aimed at.
    corpus = memory_corpus([[1] * 6400] * 5)
    full = make(corpus, "segment-pair", pair, short_seq_prob=0.0)
    lengths = whole_epoch(full)["attention_mask"].sum(axis=1) - 3
    assert (lengths < 64).mean() < 0.02  # ends of documents

    examples = make(corpus, "segment-pair", pair, short_seq_prob=0.3)
    lengths = whole_epoch(examples)["attention_mask"].sum(axis=1) - 3
    short = lengths[lengths < 64]
    rests = examples.num_examples - full.num_examples
    assert rests == round(0.3 / 1.7 * full.num_examples)
    assert len(short) / len(lengths) == pytest.approx(0.3, abs=0.02)
    assert short.min() == 2
    assert short.max() >= 62
    # Uniform on [2, 62]: mean 32, standard deviation 17.6.
    assert short.mean() == pytest.approx(32, abs=5 * 17.6 / np.sqrt(len(short)))


def test_the_rest_of_a_short_example_is_another_example(memory_corpus):
    corpus = memory_corpus([[1] * 60] * 100)
    examples = make(corpus, "segment-pair", "none", short_seq_prob=1.0)
    assert examples.num_examples == 200
    tokens = [token for a, b in segments_of(whole_epoch(examples)) for token in a + b]
    assert sorted(tokens) == list(range(6000))
