"""Ids of released vocabularies equal those of the reference implementations."""

import re
import sys

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers.implementations import (
    BertWordPieceTokenizer,
    ByteLevelBPETokenizer,
    SentencePieceUnigramTokenizer,
)

from bertjax.corpus.text import read_documents
from bertjax.tokenizers.tokenizer import load

TRAPS = [
    "",
    " ",
    "\n\t\r\n",
    "   leading and trailing   ",
    "a" * 100,
    "a" * 101,
    "word " + "longer" * 40 + " word",
    "caf\u00e9 cafe\u0301 \u00c5ngstr\u00f6m A\u030angstro\u0308m",
    "\u0130stanbul \u1e9e \u00df \ufb01ne 3\u00bd \u00b2 \u2460",
    "zero\u0000byte bell\u0007 delete\u007f next\u0085line soft\u00adhyphen",
    "replacement\ufffd last\uffff zero\u200bwidth joiner\u200d bom\ufeff",
    "thin\u2009space line\u2028separator ideographic\u3000space",
    "\u4e2d\u6587\u5b57\u7b26mixed\u4e0eEnglish \u3402 \U00020000 \uf900",
    "\u65e5\u672c\u8a9e\u30c6\u30ad\u30b9\u30c8 \ud55c\uad6d\uc5b4",
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \u0928\u092e\u0938\u094d\u0924\u0947",
    "\U0001f600 \U0001f469\u200d\U0001f680 \u2603 \u2019curly\u2018",
    "don't can't I'll we've they're 'quoted' `ticks`",
    "$12.50, e-mail@example.com http://a.b/c?d=e&f#g <tag/> a_b --x=[y]{z}|~^",
    "##ing ##a \u2581word \u0120word",
]

SPECIAL = re.compile(r"\[(?:PAD|UNK|CLS|SEP|MASK)\]")


@pytest.fixture(scope="module")
def heldout(shared_data) -> list[str]:
    return list(read_documents([str(shared_data / "corpus" / "enwiki_heldout" / "*.gz")]))


def assert_equal_ids(tokenizer, reference_ids, texts):
    for text, got, expected in zip(
        texts, tokenizer.encode_batch(texts), reference_ids, strict=True
    ):
        assert got == expected, text[:200]


@pytest.mark.parametrize(
    ("name", "lowercase"), [("uncased", True), pytest.param("cased", False, marks=pytest.mark.slow)]
)
def test_bert(shared_data, heldout, name, lowercase):
    vocab = shared_data / "vocab" / f"bert-base-{name}" / "vocab.txt"
    reference = BertWordPieceTokenizer.from_file(str(vocab), lowercase=lowercase)
    texts = heldout + TRAPS
    # The reference takes these for control tokens, which bertjax never does; there are none.
    assert not any(map(SPECIAL.search, texts))
    encodings = reference.encode_batch(texts, add_special_tokens=False)
    assert len(heldout) > 200
    assert_equal_ids(load(vocab.parent), [encoding.ids for encoding in encodings], texts)


def test_bert_differs_from_the_reference_only_in_literal_special_tokens(shared_data):
    vocab = shared_data / "vocab" / "bert-base-uncased" / "vocab.txt"
    reference = BertWordPieceTokenizer.from_file(str(vocab))
    tokenizer = load(vocab)
    text = "the [MASK] sat [SEP] down"
    taken_as_control = reference.encode(text, add_special_tokens=False).ids
    reference._tokenizer.encode_special_tokens = True
    taken_as_text = reference.encode(text, add_special_tokens=False).ids
    assert tokenizer.mask_id in taken_as_control
    assert tokenizer.encode_batch([text]) == [taken_as_text]


def test_chinese_bert(shared_data):
    texts = list(read_documents([str(shared_data / "corpus" / "zhwiki" / "*.gz")]))[:500]
    vocab = shared_data / "kbert" / "vocab.txt"
    reference = BertWordPieceTokenizer.from_file(str(vocab))
    encodings = reference.encode_batch(texts + TRAPS, add_special_tokens=False)
    assert_equal_ids(load(vocab), [encoding.ids for encoding in encodings], texts + TRAPS)


def test_gpt2(shared_data, heldout):
    folder = shared_data / "vocab" / "gpt2"
    files = [str(folder / "encoder.json"), str(folder / "vocab.bpe")]
    texts = [*heldout, *TRAPS, "<|endoftext|> [MASK] <s>"]
    encodings = ByteLevelBPETokenizer.from_file(*files).encode_batch(texts)
    assert_equal_ids(load(folder), [encoding.ids for encoding in encodings], texts)


def test_t5(shared_data, heldout):
    model = shared_data / "vocab" / "t5" / "spiece.model"
    reference = sentencepiece.SentencePieceProcessor(model_file=str(model))
    texts = [*heldout, *TRAPS, "</s> <pad> <unk> [MASK]"]
    assert_equal_ids(load(model), reference.encode(texts), texts)


# The reference leaves its file open.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_t5_in_rust_differs_only_by_rounding(shared_data, heldout, monkeypatch):
    """Hugging Face adds scores in float64 and sentencepiece in float32: long texts have ties."""
    monkeypatch.setitem(sys.modules, "sentencepiece_model_pb2", sentencepiece_model_pb2)
    model = shared_data / "vocab" / "t5" / "spiece.model"
    scores = sentencepiece.SentencePieceProcessor(model_file=str(model)).get_score
    reference = SentencePieceUnigramTokenizer.from_spm(str(model))
    expected = [encoding.ids for encoding in reference.encode_batch(heldout)]
    differing = [
        (sum(map(scores, bertjax_ids)), sum(map(scores, reference_ids)))
        for bertjax_ids, reference_ids in zip(
            load(model).encode_batch(heldout), expected, strict=True
        )
        if bertjax_ids != reference_ids
    ]
    assert len(differing) < len(heldout) / 20
    for bertjax_score, reference_score in differing:
        assert bertjax_score == pytest.approx(reference_score, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "text", "ids"),
    [
        ("bert-base-uncased", "Hello, world!", [7592, 1010, 2088, 999]),
        ("bert-base-cased", "Hello, world!", [8667, 117, 1362, 106]),
        ("gpt2", "Hello, world!", [15496, 11, 995, 0]),
        ("t5", "Hello, world!", [8774, 6, 296, 55]),
    ],
)
def test_published_ids(shared_data, name, text, ids):
    tokenizer = load(shared_data / "vocab" / name)
    assert tokenizer.encode_batch([text]) == [ids]
    assert tokenizer.decode(ids) == {"bert-base-uncased": "hello, world!"}.get(name, text)
