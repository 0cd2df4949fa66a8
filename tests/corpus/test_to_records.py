"""Records of tokenized documents."""

import numpy as np

from bertjax.corpus import encoding
from bertjax.corpus.encoding import to_records
from bertjax.corpus.reader import INDEX_DTYPE, MAX_RECORD_TOKENS, sentence_ids


def packed(documents, dtype="<u2"):
    """Convert documents, given as lists of sentences, to records."""
    flat = [token for document in documents for sentence in document for token in sentence]
    lengths = [len(sentence) for document in documents for sentence in document]
    sizes = [len(document) for document in documents]
    return to_records(*(np.array(values, kind) for values, kind in
                  ((flat, dtype), (lengths, np.int64), (sizes, np.int64))))  # fmt: skip


def test_a_record_is_token_ids_and_then_sentence_lengths():
    found, index = packed([[[5, 6, 7], [8]], [[9, 10]]])
    assert found == [
        np.array([5, 6, 7, 8, 3, 1], "<u2").tobytes(),
        np.array([9, 10, 2], "<u2").tobytes(),
    ]
    assert index.dtype == INDEX_DTYPE
    assert index.tolist() == [(4, 2, True), (2, 1, True)]
    assert [ids.tolist() for ids in sentence_ids(found[0], 2, np.dtype("<u2"))] == [[5, 6, 7], [8]]


def test_large_vocabularies_use_four_bytes_per_token():
    found, _ = packed([[[70_000]]], "<u4")
    assert np.frombuffer(found[0], "<u4").tolist() == [70_000, 1]


def test_records_of_long_documents_end_between_sentences(monkeypatch):
    monkeypatch.setattr(encoding, "MAX_RECORD_TOKENS", 10)
    found, index = packed([[[1] * 4, [2] * 6, [3] * 7, [4] * 4], [], [[5] * 2]])
    assert index.tolist() == [(10, 2, True), (7, 1, False), (4, 1, False), (2, 1, True)]
    assert [np.frombuffer(record, "<u2").tolist() for record in found] == [
        [1] * 4 + [2] * 6 + [4, 6],
        [3] * 7 + [7],
        [4] * 4 + [4],
        [5] * 2 + [2],
    ]


def test_a_sentence_longer_than_a_record_is_split(monkeypatch):
    monkeypatch.setattr(encoding, "MAX_RECORD_TOKENS", 10)
    found, index = packed([[[1] * 3, list(range(23)), [9]], [[7] * 10]])
    assert index.tolist() == [
        (3, 1, True),
        (10, 1, False),
        (10, 1, False),
        (4, 2, False),
        (10, 1, True),
    ]
    pieces = [
        sentence.tolist()
        for record, row in zip(found, index, strict=True)
        for sentence in sentence_ids(record, row["sentences"], np.dtype("<u2"))
    ]
    assert pieces == [
        [1] * 3,
        list(range(10)),
        list(range(10, 20)),
        [20, 21, 22],
        [9],
        [7] * 10,
    ]


def test_the_corpus_in_memory_has_the_records_of_the_one_on_disk(memory_corpus, varied_documents):
    documents = [*varied_documents(3), [700] * 4]
    corpus = memory_corpus(documents, record_tokens=MAX_RECORD_TOKENS)
    lengths = np.array([length for document in documents for length in document])
    tokens = np.arange(lengths.sum(), dtype=corpus.dtype)
    records, index = to_records(
        tokens, lengths, np.array([len(document) for document in documents])
    )
    assert records == corpus.read(np.arange(len(corpus.tokens)))
    assert index["tokens"].tolist() == corpus.tokens.tolist()
    assert index["sentences"].tolist() == corpus.sentences.tolist()
