"""Perplexity with sliding windows: every token is counted once."""

import types

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.inference import perplexity
from bertjax.tokenizers import tokenizer


@pytest.mark.parametrize(
    ("size", "length", "stride"), [(23, 8, 3), (8, 8, 3), (3, 8, 7), (9, 8, 1)]
)
def test_every_token_except_the_first_is_predicted_once(size, length, stride):
    counted = []
    for window in perplexity.split_windows(range(size), length, stride):
        assert len(window.ids) <= length
        counted += list(window.ids)[window.first :]
    assert counted == list(range(1, size))


def test_all_windows_except_the_first_have_context():
    found = list(perplexity.split_windows(range(20), 8, 2))
    assert all(window.first >= 6 for window in found[1:-1])


class Letters:
    unk_id = ord("c")

    def encode_batch(self, texts):
        return [[ord(letter) for letter in text] for text in texts]

    def ids_to_pieces(self, ids):
        return [chr(number) for number in ids]

    def encode_with_offsets(self, text):
        return [ord(letter) for letter in text], [(n, n + 1) for n in range(len(text))]


def score_tokens(params, ids, attention_mask):
    """The log probability of a token is minus its id; even ids are correct."""
    return -np.asarray(ids)[:, 1:].astype(float), np.asarray(ids)[:, 1:] % 2 == 0


@pytest.fixture
def model():
    return types.SimpleNamespace(
        tokenizer=Letters(),
        end_id=1,
        max_length=6,
        train_length=6,
        params=None,
        score_tokens=score_tokens,
        config={"imported": {}},
    )


def test_sums_are_those_of_all_documents(model):
    texts = ["abcdefghij", "é", "ab"]
    known = perplexity.measure(model, texts, stride=2, batch_size=3)
    letters = [ord(letter) for text in texts for letter in text]
    assert known.nats == sum(letters)
    assert (known.num_tokens, known.num_bytes, known.num_documents) == (13, 14, 3)
    assert known.num_unknown == 1
    assert known.num_correct == sum(letter % 2 == 0 for letter in letters)
    assert known.bits_per_byte == pytest.approx(sum(letters) / np.log(2) / 14)


def test_bytes_of_an_unpredicted_first_token_are_not_counted(model):
    model.end_id = None
    known = perplexity.measure(model, ["éab", "d", ""], stride=2)
    assert (known.num_tokens, known.num_bytes, known.num_documents) == (2, 2, 3)


def test_line_breaks_removed_by_the_corpus_are_not_counted(model):
    model.config = {}
    model.tokenizer = tokenizer.train(["one two three"] * 3, kind="bpe", vocab_size=270)
    known = perplexity.measure(model, ["one. two\nthree\n"], stride=2)
    assert known.num_bytes == len("one. two" + "three")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 9}, "a window is too long: got 9 tokens, expected at most 6"),
        ({"stride": 6}, "stride: got 6, expected at least 1 and less than the window length 6"),
    ],
)
def test_invalid_windows_are_one_line(model, options, message):
    with pytest.raises(UserError, match=message):
        perplexity.measure(model, ["abc"], **options)


def test_the_default_window_has_the_length_of_the_training_sequences(model):
    shapes = []

    def recorded(params, ids, attention_mask):
        shapes.append(ids.shape)
        return score_tokens(params, ids, attention_mask)

    model.train_length, model.score_tokens = 4, recorded
    perplexity.measure(model, ["abcdefghij"])
    assert set(shapes) == {(8, 4)}


def test_a_text_without_tokens_is_one_line(model):
    with pytest.raises(UserError, match="no token to predict"):
        perplexity.measure(model, [""])
