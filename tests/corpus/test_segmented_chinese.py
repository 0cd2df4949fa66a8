"""Whole-word masking of Chinese text with spaces inserted by a segmenter."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers import masking
from bertjax.tokenizers import tokenizer

SEGMENTED = "使用 语言 模型 来 预测 下 一个 词 。"
WORDS = [2, 2, 2, 1, 2, 1, 2, 1, 1]


def saved(folder, pieces, split_chinese):
    folder.mkdir()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join([*specials, *pieces, ""]), encoding="utf-8")
    settings = {"do_lower_case": True, "tokenize_chinese_chars": split_chinese}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer.load(folder)


@pytest.fixture(params=["own", "released"])
def pieces(request):
    """Characters at the start of words and inside words, as in the released vocabulary."""
    if request.param == "own":
        characters = sorted(set(SEGMENTED.replace(" ", "")))
        return characters + [f"##{character}" for character in characters]
    path = request.getfixturevalue("shared_data") / "kbert" / "vocab.txt"
    return [line for line in path.read_text(encoding="utf-8").split("\n")[:-1] if line[:1] != "["]


def test_words_start_at_the_spaces_of_the_segmenter(pieces, tmp_path):
    words = saved(tmp_path / "words", pieces, split_chinese=False)
    (ids,) = words.encode_batch([SEGMENTED])
    spelled = words.ids_to_pieces(ids)
    assert "".join(piece.removeprefix("##") for piece in spelled) == SEGMENTED.replace(" ", "")
    starts = np.flatnonzero(words.word_starts[ids])
    np.testing.assert_array_equal(starts, np.cumsum([0, *WORDS[:-1]]))
    # Where characters are split from each other, as by default, every one of them is a word.
    characters = saved(tmp_path / "characters", pieces, split_chinese=True)
    (ids,) = characters.encode_batch([SEGMENTED])
    assert characters.word_starts[ids].all()


def test_masks_cover_whole_chinese_words(pieces, tmp_path):
    words = saved(tmp_path / "words", pieces, split_chinese=False)
    ids = np.array(words.encode_batch([SEGMENTED])[0])
    starts = jnp.asarray(np.tile(words.word_starts[ids], (200, 1)))
    keys = jax.random.split(jax.random.key(0), 200)
    positions, _ = masking.choose_words(keys, jnp.ones_like(starts), starts, jnp.full(200, 2), 2)
    word = np.repeat(np.arange(len(WORDS)), WORDS)
    for locations in np.asarray(positions):
        chosen = set(word[locations].tolist())
        assert sum(WORDS[index] for index in chosen) == 2


def test_sentencepiece_learns_words_of_segmented_text():
    texts = [SEGMENTED] * 50
    learned = tokenizer.train(texts, kind="unigram", vocab_size=40)
    (ids,) = learned.encode_batch([SEGMENTED])
    assert learned.word_starts[ids].sum() == len(WORDS)
