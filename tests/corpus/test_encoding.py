"""Encoding of documents as records of token ids and sentence lengths."""

import numpy as np
import pytest

from bertjax.corpus import encoding
from bertjax.corpus.encoding import DocumentEncoder, encodes_spaces
from bertjax.corpus.reader import sentence_ids
from bertjax.tokenizers import tokenizer
from bertjax.tokenizers.subword import SubwordTokenizer

VOCABULARY = "[PAD] [UNK] [CLS] [SEP] [MASK] one two three . [ ] mask ! ##s"
IDS = {piece: number for number, piece in enumerate(VOCABULARY.split())}


@pytest.fixture
def vocabulary(tmp_path):
    path = tmp_path / "vocabulary"
    path.mkdir()
    (path / "vocab.txt").write_text(VOCABULARY.replace(" ", "\n") + "\n")
    return str(path)


def sentences_of(packed, dtype="<u2"):
    return [
        [sentence.tolist() for sentence in sentence_ids(record, row["sentences"], np.dtype(dtype))]
        for record, row in zip(packed.records, packed.index, strict=True)
    ]


def ids(text):
    return [IDS[word] for word in text.split()]


def test_documents_are_encoded_as_records_of_sentences(vocabulary):
    packed = DocumentEncoder(vocabulary)(["One two. Three!\nones", "\u200b", "two"])
    assert sentences_of(packed) == [
        [ids("one two ."), ids("three !"), ids("one ##s")],
        [ids("two")],
    ]
    assert packed.documents == 2
    assert packed.characters == len("One two. Three!\nones") + len("two")
    counted = dict(zip(packed.token_ids.tolist(), packed.token_counts.tolist(), strict=True))
    expected = {"one": 2, "two": 2, ".": 1, "three": 1, "!": 1, "##s": 1}
    assert counted == {IDS[piece]: count for piece, count in expected.items()}


def test_special_tokens_in_text_are_text(vocabulary):
    packed = DocumentEncoder(vocabulary)(["one [MASK] two"])
    assert sentences_of(packed) == [[ids("one [ mask ] two")]]


def test_a_document_without_tokens_has_no_record(vocabulary):
    packed = DocumentEncoder(vocabulary)(["\u200b"])
    assert packed.records == []
    assert len(packed.index) == packed.documents == packed.characters == 0
    assert DocumentEncoder(vocabulary)([]).records == []


def test_a_very_long_sentence_is_tokenized_in_pieces(vocabulary, monkeypatch):
    whole = DocumentEncoder(vocabulary)(["one two " * 3000])
    monkeypatch.setattr(encoding, "MAX_SENTENCE_CHARACTERS", 50)
    pieces = DocumentEncoder(vocabulary)(["one two " * 3000])
    flat = [
        np.frombuffer(r, "<u2")[: row["tokens"]]
        for r, row in zip(pieces.records, pieces.index, strict=True)
    ]
    assert np.concatenate(flat).tolist() == ids("one two") * 3000
    assert pieces.index["sentences"].sum() > 100
    assert whole.index["tokens"].sum() == 6000


def test_the_batch_size_of_the_tokenizer_changes_nothing(vocabulary, monkeypatch):
    documents = [f"one. two. {'three. ' * number}" for number in range(20)]
    whole = DocumentEncoder(vocabulary)(documents)
    monkeypatch.setattr(encoding, "_TEXTS_PER_CALL", 7)
    assert DocumentEncoder(vocabulary)(documents).records == whole.records


@pytest.mark.parametrize("kind", ["bert-base-uncased", "bert-base-cased", "gpt2", "t5"])
def test_ids_of_sentences_equal_those_of_their_line(shared_data, kind):
    """Splitting a line into sentences does not change its token ids."""
    path = str(shared_data / "vocab" / kind)
    lines = [
        "A first one. Then \u2018a second\u2019, longer one! (Is it?) Yes.",
        "Line two: 3.5 percent of Mr. Smith's 1,000 dogs. The end",
    ]
    packed = DocumentEncoder(path)(["\n".join(lines)])
    (found,) = sentences_of(packed)
    reference = tokenizer.load(path)
    assert [token for sentence in found for token in sentence] == [
        token for line in reference.encode_batch(lines) for token in line
    ]
    assert len(found) == 6
    assert encodes_spaces(reference) == (kind == "gpt2")


LINE = "\u4eca\u65e5\u306f\u3002\u660e\u65e5\u306f\u3002 One\uff01  Two\u3002\u4eca"


def metaspace(line):
    """A `tokenizer.json` that puts a space before each text; one piece has two characters."""
    pieces = ["<unk>", "\u2581", *dict.fromkeys(line.replace(" ", "")), "\u4eca\u660e"]
    space = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}
    model = {"type": "Unigram", "unk_id": 0, "vocab": [[piece, -1.0] for piece in pieces]}
    return SubwordTokenizer({"model": model, "pre_tokenizer": space, "decoder": space})


@pytest.mark.parametrize("kind", ["bpe", "unigram", "sentencepiece_bpe", "metaspace"])
def test_no_space_is_encoded_between_sentences_without_one(tmp_path, kind):
    if kind == "metaspace":
        reference = metaspace(LINE)
    else:
        reference = tokenizer.train([LINE], kind=kind, vocab_size=270 if kind == "bpe" else 26)
    reference.save(str(tmp_path / "saved"))
    (found,) = sentences_of(DocumentEncoder(str(tmp_path / "saved"))([f"{LINE}\n {LINE} "]))
    line = LINE.replace("  ", " ")
    assert [token for sentence in found for token in sentence] == [
        token for ids in reference.encode_batch([line, line]) for token in ids
    ]
    assert len(found) == 10


def test_parts_of_a_long_sentence_have_no_space_between_them(tmp_path, monkeypatch):
    reference = metaspace("\u4eca\u65e5 x")
    reference.save(str(tmp_path / "saved"))
    monkeypatch.setattr(encoding, "MAX_SENTENCE_CHARACTERS", 4)
    text = "\u4eca\u65e5" * 5 + " x"
    (found,) = sentences_of(DocumentEncoder(str(tmp_path / "saved"))([text]))
    assert [token for sentence in found for token in sentence] == reference.encode_batch([text])[0]
    assert len(found) > 2


@pytest.mark.parametrize(("vocab_size", "size"), [(1 << 16, 2), ((1 << 16) + 1, 4)])
def test_ids_are_stored_in_the_smallest_dtype(vocab_size, size):
    dtype = encoding.id_dtype(vocab_size)
    assert dtype.itemsize == size
    assert np.array(vocab_size - 1).astype(dtype) == vocab_size - 1
