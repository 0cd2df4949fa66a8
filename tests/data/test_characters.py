"""Character ids of words, of a vocabulary and of text."""

import numpy as np
import pytest

from bertjax.data import characters
from bertjax.errors import UserError
from bertjax.tasks import sequences
from bertjax.tokenizers import tokenizer

P = characters.PADDING


@pytest.fixture(scope="module")
def words():
    texts = ["the cat sees the dog .", "the dog , the cat"]
    return tokenizer.train(texts, kind="words", vocab_size=9)


def test_spell_by_hand():
    rows = characters.spell(["ab", "", "ä€", "abcdefgh"], 6)
    assert rows.tolist() == [
        [258, 97, 98, 259, P, P],
        [258, 259, P, P, P, P],
        [258, 0xC3, 0xA4, 0xE2, 0x82, 259],
        [258, 97, 98, 99, 100, 259],
    ]


def test_a_tokenizer_of_words(words):
    assert words.kind == "words"
    # Frequent ones first, then by spelling.
    assert words.ids_to_pieces(list(range(5, 9))) == ["the", "cat", "dog", ","]
    assert words.encode_batch(["the dog flies, [CLS]"]) == [[5, 7, 1, 8, 1, 1, 1]]
    assert words.decode([5, 7]) == "the dog"
    assert words.word_starts.all()
    with pytest.raises(UserError, match="vocab_size too small for a word"):
        tokenizer.train(["a"], kind="words", vocab_size=5)


def test_a_vocabulary_has_boundary_words(words):
    rows = characters.vocabulary(words, 6)
    assert rows[words.cls_id].tolist() == [258, 256, 259, P, P, P]
    assert rows[words.sep_id].tolist() == [258, 257, 259, P, P, P]
    assert rows[words.pad_id].tolist() == [P] * 6
    assert rows[6].tolist() == [258, *b"cat", 259, P]


def test_words_outside_the_vocabulary_get_rows(words):
    encoded = sequences.encode((["the bird", "dog"],), words, 6, max_chars_per_word=8)
    batch = encoded.rows(np.array([0, 1]), 5)
    assert batch["input_ids"].tolist()[0] == [2, 5, 1, 3, 0]
    expected = [characters.boundary_word(256, 8), *characters.spell(["the", "bird"], 8)]
    expected += [characters.boundary_word(257, 8), np.full(8, P)]
    np.testing.assert_array_equal(batch["char_ids"][0], expected)
    np.testing.assert_array_equal(batch["char_ids"][1, 3:], P)


def test_too_few_characters_per_word_are_one_line():
    with pytest.raises(UserError, match="max_chars_per_word: got 2, expected an integer >= 3"):
        characters.spell(["a"], 2)
