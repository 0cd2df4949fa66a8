"""What word frequencies alone know, by hand."""

import math
import types

import numpy as np
import pytest

from bertjax.runs.held_out import unigram

TRAIN = types.SimpleNamespace(token_counts=np.array([9, 2, 5, 3, 1, 0]))
HELD_OUT = types.SimpleNamespace(token_counts=np.array([4, 1, 2, 0, 1, 1]))


def test_special_tokens_are_left_out():
    found = unigram(TRAIN, HELD_OUT, (0, 1))
    # Counts 5, 3, 1, 0 and one each.
    wanted = -(2 * math.log(6 / 13) + math.log(2 / 13) + math.log(1 / 13)) / 4
    assert found["unigram_loss"] == pytest.approx(wanted)
    assert found["unigram_accuracy"] == 2 / 4


def test_rare_words_are_one_unknown_word():
    found = unigram(TRAIN, HELD_OUT, (0, 1), unk_id=1, softmax_size=3)
    # Unknown: 2 + 3 + 1 + 0 of the training text, 1 + 0 + 1 + 1 of the held-out text.
    wanted = -(3 * math.log(7 / 13) + 2 * math.log(6 / 13)) / 5
    assert found["unigram_loss"] == pytest.approx(wanted)
    assert found["unigram_accuracy"] == 3 / 5
