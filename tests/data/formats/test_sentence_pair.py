"""Pairs of sentences: by hand, and truncation."""

import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from sentence_examples import CLS, PAD, SEP, make, segments_of, whole_epoch


def test_sentence_pairs_by_hand(memory_corpus):
    corpus = memory_corpus([[2, 3, 1, 4], [5], [1, 1]])
    examples = make(corpus, "sentence-pair", max_seq_length=10)
    assert examples.num_examples == 3  # nothing follows the sentence of the second document
    epochs = {}
    for epoch in range(20):
        batch = whole_epoch(examples, epoch)
        assert batch["input_ids"][2].tolist() == [CLS, 15, SEP, 16, SEP] + 5 * [PAD]
        assert batch["segment_ids"][2].tolist() == [0, 0, 0, 1, 1] + 5 * [0]
        assert "pair_label" not in batch
        epochs[str(segments_of(batch)[:2])] = segments_of(batch)[:2]
    assert sorted(epochs.values(), key=str) == [
        [[[0, 1], [2, 3, 4]], [[5], [6, 7, 8, 9]]],
        [[[2, 3, 4], [5]], [[5], [6, 7, 8, 9]]],
    ]


def test_longer_segments_are_truncated_first(memory_corpus):
    corpus = memory_corpus([[9, 4], [3, 20], [8, 8]])
    examples = make(corpus, "sentence-pair", max_seq_length=3 + 10)
    a, b = zip(*segments_of(whole_epoch(examples)), strict=True)
    assert [(len(x), len(y)) for x, y in zip(a, b, strict=True)] == [(6, 4), (3, 7), (5, 5)]
    fronts = set()
    for epoch in range(200):
        first = segments_of(examples.build(epoch, np.array([0])))[0][0]
        assert first == list(range(first[0], first[0] + 6))
        fronts.add(first[0])
    assert fronts == {0, 1, 2, 3}
