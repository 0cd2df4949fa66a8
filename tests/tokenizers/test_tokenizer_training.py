"""Training of tokenizers: by hand, deterministic, with the requested size."""

import json
import pydoc_data.topics
import random
import subprocess
import sys
import unicodedata

import pytest
import sentencepiece

from bertjax.errors import UserError
from bertjax.tokenizers import sentencepiece_training
from bertjax.tokenizers.sentencepiece_training import character_converter
from bertjax.tokenizers.tokenizer import KINDS, train

TOPICS = list(pydoc_data.topics.topics.values())

SHARED_LETTERS = ["ab ab ab abc abc"]

FINGERPRINTS = """
import json, random
from bertjax.tokenizers.tokenizer import KINDS, train

generator = random.Random(11)
words = ["".join(generator.choices("abcdefghij", k=5)) for _ in range(3000)]
texts = [" ".join(words)] * 2
print(json.dumps({kind: train(texts, kind=kind, vocab_size=700).fingerprint for kind in KINDS}))
"""


def every_piece(tokenizer) -> list[str]:
    return tokenizer.ids_to_pieces(list(range(tokenizer.vocab_size)))


def test_wordpiece_by_hand():
    tokenizer = train(SHARED_LETTERS, vocab_size=100, character_coverage=1)
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    # a ##b occurs 5 times, then ab ##c twice; nothing is left to be joined.
    assert every_piece(tokenizer) == [*specials, "a", "b", "c", "##b", "##c", "ab", "abc"]


def test_byte_level_bpe_by_hand():
    tokenizer = train(SHARED_LETTERS, kind="bpe", vocab_size=300)
    pieces = every_piece(tokenizer)
    assert pieces[:5] == ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    assert len(set(pieces[5:261])) == 256
    assert {len(piece) for piece in pieces[5:261]} == {1}
    # a b occurs 5 times, then Ġ ab 4 times, then Ġab c twice.
    assert pieces[261:] == ["ab", "Ġab", "Ġabc"]
    assert (tokenizer.cls_id, tokenizer.pad_id, tokenizer.sep_id) == (0, 1, 2)
    assert (tokenizer.unk_id, tokenizer.mask_id) == (3, 4)


@pytest.mark.parametrize("kind", ["unigram", "sentencepiece_bpe"])
def test_sentencepiece_has_alberts_special_tokens(kind):
    tokenizer = train(TOPICS, kind=kind, vocab_size=300)
    assert every_piece(tokenizer)[:5] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    roles = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id)
    assert (*roles, tokenizer.sep_id, tokenizer.mask_id) == (0, 1, 2, 3, 4)
    assert tokenizer.special_ids == (0, 1, 2, 3, 4)


@pytest.fixture(scope="module")
def fingerprints(root) -> list[dict[str, str]]:
    """The fingerprints of all kinds in three processes, each with another hash seed."""
    command = [sys.executable, "-c", FINGERPRINTS]
    return [json.loads(subprocess.check_output(command, cwd=root)) for _ in range(3)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_vocabulary_is_the_same_in_every_process(kind, fingerprints):
    """The text has many pairs of equal frequency, whose order could differ between processes."""
    assert len({process[kind] for process in fingerprints}) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_vocabulary_has_the_requested_size(kind):
    tokenizer = train(TOPICS, kind=kind, vocab_size=1009)
    assert tokenizer.vocab_size == 1009
    assert tokenizer.kind == kind
    ids = tokenizer.encode_batch(TOPICS)
    assert max(map(max, ids)) < 1009
    unknown = sum(text_ids.count(tokenizer.unk_id) for text_ids in ids)
    if kind != "words":  # which spell nothing
        assert unknown < 0.001 * sum(map(len, ids))
    assert sum(map(len, ids)) < sum(map(len, TOPICS)) / 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_small_text_gives_fewer_tokens(kind):
    assert train(SHARED_LETTERS * 3, kind=kind, vocab_size=5000).vocab_size < 300


def test_the_first_pieces_are_those_of_a_smaller_vocabulary():
    small, large = (every_piece(train(TOPICS, vocab_size=size)) for size in (500, 700))
    assert large[:500] == small


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"kind": "wordpeace"},
            "unknown kind .*: got 'wordpeace', did you mean 'wordpiece'",
        ),
        ({"vocab_size": 20}, "vocab_size too small .* got 20, expected at least [0-9]+"),
        (
            {"kind": "bpe", "vocab_size": 260},
            "256 bytes: got 260, expected at least 261",
        ),
        ({"kind": "unigram", "vocab_size": 20}, "got 20, expected at least [0-9]+"),
        ({"kind": "sentencepiece_bpe", "vocab_size": 20}, "vocab_size too small"),
        ({"normalization": "nfx"}, "normalization: got 'nfx', expected one of none"),
        ({"kind": "unigram", "normalization": "nfd"}, "got 'nfd', .* for SentencePiece"),
        ({"kind": "bpe", "character_coverage": 0.9}, "expected none for kind='bpe'"),
        ({"character_coverage": 1.5}, "character_coverage: got 1.5, expected"),
        ({"character_coverage": 0.0}, "character_coverage: got 0.0, expected"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(settings, message):
    with pytest.raises(UserError, match=message) as caught:
        train(TOPICS[:5], **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("texts", [[], ["", " \n\u3000\t"]])
def test_text_without_words_is_refused(kind, texts):
    with pytest.raises(UserError, match="the input contains no text"):
        train(texts, kind=kind, vocab_size=300)


@pytest.mark.parametrize("kind", KINDS)
def test_errors_of_the_input_are_raised(kind):
    def texts():
        yield "some text"
        raise UserError("the second file is damaged")

    with pytest.raises(UserError, match=r"^the second file is damaged$"):
        train(texts(), kind=kind, vocab_size=300)


def test_words_with_rare_characters_are_ignored():
    texts = ["common words " * 5000 + "comm\u20acn comm\u20acn"]
    tokenizer = train(texts, vocab_size=60)
    assert not any("\u20ac" in piece for piece in every_piece(tokenizer))
    assert "commn" not in every_piece(train(texts, vocab_size=5000))
    everything = train(texts, vocab_size=5000, character_coverage=1)
    assert "comm\u20acn" in every_piece(everything)


def test_words_too_long_to_be_encoded_are_ignored():
    texts = ["short " + "x" * 101] * 3
    assert "xx" not in "".join(every_piece(train(texts, vocab_size=500)))


SPELLINGS = {
    "case": ("WORD", "word"),
    "composition": ("\u00e5ngstr\u00f6m", "a\u030angstro\u0308m"),
    "accents": ("\u00e5ngstr\u00f6m", "angstrom"),
    "ligature": ("\ufb01ne", "fine"),
    "width": ("\uff11\uff12", "12"),
}


@pytest.mark.parametrize(
    ("kind", "settings", "same"),
    [
        ("wordpiece", {}, {"case", "composition", "accents"}),
        ("wordpiece", {"strip_accents": False}, {"case"}),
        ("wordpiece", {"lowercase": False}, set()),
        ("wordpiece", {"lowercase": False, "strip_accents": True}, {"composition", "accents"}),
        ("wordpiece", {"lowercase": False, "normalization": "nfc"}, {"composition"}),
        ("wordpiece", {"lowercase": False, "normalization": "nfd"}, {"composition"}),
        ("wordpiece", {"normalization": "nfkc"}, set(SPELLINGS)),
        ("bpe", {}, set()),
        ("bpe", {"normalization": "nfc"}, {"composition"}),
        ("bpe", {"normalization": "nfkd"}, {"composition", "ligature", "width"}),
        ("bpe", {"lowercase": True}, {"case"}),
        ("bpe", {"strip_accents": True}, {"composition", "accents"}),
        ("unigram", {}, {"composition", "ligature", "width"}),
        ("unigram", {"normalization": "none"}, set()),
        ("unigram", {"lowercase": True}, {"case", "composition", "ligature", "width"}),
        ("unigram", {"lowercase": True, "normalization": "none"}, {"case"}),
        ("unigram", {"strip_accents": True, "normalization": "none"}, {"composition", "accents"}),
        pytest.param(
            "unigram",
            {"lowercase": True, "strip_accents": True},
            set(SPELLINGS),
            marks=pytest.mark.slow,
        ),
        ("sentencepiece_bpe", {}, {"composition", "ligature", "width"}),
        ("sentencepiece_bpe", {"lowercase": True, "strip_accents": True}, set(SPELLINGS)),
    ],
)
def test_normalization_of_spellings(kind, settings, same):
    every_spelling = " ".join(word for pair in SPELLINGS.values() for word in pair)
    texts = [" ".join([every_spelling, *every_spelling])] * 3
    tokenizer = train(texts, kind=kind, vocab_size=400, **settings)
    assert tokenizer.unk_id not in tokenizer.encode_batch([every_spelling])[0]
    ids = {name: tokenizer.encode_batch(list(pair)) for name, pair in SPELLINGS.items()}
    assert {name for name, (one, other) in ids.items() if one == other} == same


@pytest.mark.parametrize("lowercase", [True, False])
def test_the_normalization_table_equals_that_of_sentencepiece(lowercase):
    """The table is needed to strip accents; without that it can be compared."""
    own = sentencepiece.SentencePieceNormalizer(
        rule_name="nmt_nfkc_cf" if lowercase else "nmt_nfkc",
        add_dummy_prefix=False,
        escape_whitespaces=False,
        remove_extra_whitespaces=False,
    )
    convert = character_converter("nfkc", lowercase=lowercase, strip_accents=False)
    # Python's Unicode may be older; C1 controls are dropped by us alone; two accents and the wide
    # tilde are special to SentencePiece.
    characters = map(chr, (*range(1, 0x80), *range(0xA0, 0x1C80), *range(0x2000, 0xA000)))
    exceptions = set("\u0307\u0308")
    differing = [
        character
        for character in characters
        if unicodedata.category(character) != "Cn"
        and own.Normalize(f"x{character}x") != f"x{convert(character)}x"
    ]
    assert set(differing) <= exceptions


def test_unigram_is_trained_on_a_sample_of_a_long_text(monkeypatch, capsys):
    lines = [line for text in TOPICS for line in text.splitlines()]
    whole, size = train(lines, kind="unigram", vocab_size=300), sum(map(len, lines))
    monkeypatch.setattr(sentencepiece_training, "MAX_CHARACTERS", size)
    assert train(lines, kind="unigram", vocab_size=300).fingerprint == whole.fingerprint
    assert not capsys.readouterr().err
    monkeypatch.setattr(sentencepiece_training, "MAX_CHARACTERS", size // 3)
    first, second = (train(lines, kind="unigram", vocab_size=300) for _ in range(2))
    assert first.fingerprint == second.fingerprint != whole.fingerprint
    assert "trained on a sample of 1/4 of it" in capsys.readouterr().err
    sample = list(sentencepiece_training._sample(lines))
    assert size / 5 < sum(map(len, sample)) <= size // 3
    rest = iter(lines)
    assert all(line in rest for line in sample)  # in order


@pytest.mark.parametrize("kind", ["unigram", "sentencepiece_bpe"])
def test_long_lines_are_not_skipped(kind):
    """SentencePiece skips sentences of more than 4,192 bytes, silently."""
    generator = random.Random(5)
    line = " ".join("".join(generator.choices("abcde", k=4)) for _ in range(4000)) + " xyzzy" * 50
    pieces = every_piece(train([line], kind=kind, vocab_size=100))
    assert "▁xyzzy" in pieces
    unbroken = "".join(generator.choices("abcde", k=9000)) + "z"
    pieces = every_piece(train([unbroken], kind=kind, vocab_size=60, character_coverage=1))
    assert "z" in pieces
