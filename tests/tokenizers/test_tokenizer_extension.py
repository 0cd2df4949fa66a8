"""Extension of vocabularies: merges by hand, ids that stay, and files that other libraries read."""

import pydoc_data.topics

import pytest
import tokenizers

from bertjax.errors import UserError
from bertjax.tokenizers.extension import extend
from bertjax.tokenizers.tokenizer import load, train

TOPICS = list(pydoc_data.topics.topics.values())


def pieces_of(tokenizer, text: str) -> list[str]:
    return tokenizer.ids_to_pieces(tokenizer.encode_batch([text])[0])


def test_wordpiece_by_hand():
    old = train(["ab ab ab abc abc"], vocab_size=100, character_coverage=1)
    # Words as pieces: b ##c twice, ab ##b 3 times, and one with an unknown character.
    found = extend(old, ["bc bc abb abb abb abd"], num_pieces=10)
    assert found.pieces == ["abb", "bc"]
    assert found.tokenizer.ids_to_pieces([12, 13]) == ["abb", "bc"]
    assert found.pieces_per_word == (2, 1)
    assert found.unknown_share == pytest.approx(1 / 6)
    assert pieces_of(found.tokenizer, "abb abc bc") == ["abb", "abc", "bc"]


def test_byte_level_bpe_by_hand():
    old = train(["ab ab ab abc abc"], kind="bpe", vocab_size=300)
    # Ġ c ab three times: of equally frequent pairs the first is merged, Ġ c and then Ġc ab.
    found = extend(old, ["cab cab cab abc"], num_pieces=10)
    assert found.pieces == ["Ġc", "Ġcab"]
    assert found.pieces_per_word == (2.5, 1)
    assert pieces_of(found.tokenizer, "ab cab") == ["ab", "Ġcab"]


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_ids_stay_and_the_text_has_fewer_pieces(kind, tmp_path):
    old = train(TOPICS[:20], kind=kind, vocab_size=600)
    found = extend(old, TOPICS[20:], num_pieces=100)
    new = found.tokenizer
    assert len(found.pieces) == 100 == new.vocab_size - old.vocab_size
    assert new.ids_to_pieces(range(600)) == old.ids_to_pieces(range(600))
    assert new.special_ids == old.special_ids
    before, after = (sum(map(len, each.encode_batch(TOPICS[20:]))) for each in (old, new))
    assert after < 0.95 * before
    assert new.fingerprint == extend(old, TOPICS[20:], num_pieces=100).tokenizer.fingerprint
    new.save(str(tmp_path / "new"))
    assert load(tmp_path / "new").fingerprint == new.fingerprint
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "new" / "tokenizer.json"))
    text = TOPICS[30]
    assert library.encode(text, add_special_tokens=False).ids == new.encode_batch([text])[0]


def test_other_kinds_and_empty_texts_are_refused():
    words = train(["a b c"], kind="words", vocab_size=8)
    with pytest.raises(UserError, match="of kind words: expected WordPiece or byte-level BPE"):
        extend(words, ["d"], num_pieces=1)
    with pytest.raises(UserError, match="the input contains no text"):
        extend(train(["ab ab"], vocab_size=20, character_coverage=1), ["", " "], num_pieces=1)
