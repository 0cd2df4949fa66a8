"""Reading a corpus: records in any order, checksums, fingerprints."""

import json
import resource
import shutil
import threading

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from bertjax.corpus.encoding import to_records
from bertjax.corpus.reader import (
    check_tokenizer,
    content_fingerprint,
    hash_file,
    open_corpus,
    sentence_ids,
    verify,
)
from bertjax.errors import UserError

VOCABULARY = 97


def packed(documents, dtype="<u2"):
    """Convert documents, given as lists of sentences, to records."""
    flat = [token for document in documents for sentence in document for token in sentence]
    lengths = [len(sentence) for document in documents for sentence in document]
    sizes = [len(document) for document in documents]
    return to_records(*(np.array(values, kind) for values, kind in
                  ((flat, dtype), (lengths, np.int64), (sizes, np.int64))))  # fmt: skip


def write_corpus(path, documents, num_shards=3):
    """Write a corpus of one split without `prepare`."""
    path.mkdir()
    found, index = packed(documents)
    shards = []
    for number, part in enumerate(np.array_split(np.arange(len(found)), num_shards)):
        file = f"train-{number:05d}-of-{num_shards:05d}.array_record"
        writer = ArrayRecordWriter(str(path / file), "group_size:1,uncompressed")
        for record in part:
            writer.write(found[record])
        writer.close()
        size = (path / file).stat().st_size
        shards.append(
            {"file": file, "records": len(part), "bytes": size, "sha256": hash_file(path / file)}
        )
    flat = [token for document in documents for sentence in document for token in sentence]
    arrays = {"index": index, "counts": np.bincount(flat, minlength=VOCABULARY)}
    files = {}
    for kind, array in arrays.items():
        np.save(path / f"train.{kind}.npy", array)
        file = f"train.{kind}.npy"
        files[kind] = {"file": file, "sha256": hash_file(path / file)}
    manifest = {
        "format": 1,
        "dtype": "<u2",
        "tokenizer": {"fingerprint": "f" * 64, "kind": "wordpiece", "vocab_size": VOCABULARY},
        "splits": {
            "train": {
                "documents": len(documents),
                "records": len(found),
                "sentences": int(index["sentences"].sum()),
                "tokens": len(flat),
                "shards": shards,
                **files,
            }
        },
    }
    manifest["fingerprint"] = content_fingerprint(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


@pytest.fixture
def documents():
    random = np.random.default_rng(5)
    return [
        [random.integers(0, VOCABULARY, random.integers(1, 40)).tolist() for _ in range(size)]
        for size in random.integers(1, 13, 101)
    ]


@pytest.fixture
def corpus_path(tmp_path, documents):
    return write_corpus(tmp_path / "corpus", documents)


def test_reading_returns_what_was_written(corpus_path, documents):
    corpus = open_corpus(corpus_path)
    read = corpus.read(np.arange(corpus.num_records))
    found = {}
    for record, sentences, document in zip(read, corpus.sentences, corpus.document, strict=True):
        ids = sentence_ids(record, int(sentences), corpus.dtype)
        found.setdefault(int(document), []).extend(sentence.tolist() for sentence in ids)
    assert [found[number] for number in range(len(documents))] == documents
    assert corpus.num_documents == 101
    assert corpus.num_tokens == corpus.tokens.sum() == corpus.token_counts.sum()
    flat = [token for document in documents for sentence in document for token in sentence]
    assert corpus.token_counts.tolist() == np.bincount(flat, minlength=VOCABULARY).tolist()


def test_records_are_read_in_any_order_and_repeatedly(corpus_path):
    corpus = open_corpus(corpus_path)
    everything = corpus.read(np.arange(corpus.num_records))
    numbers = np.random.default_rng(0).integers(0, corpus.num_records, 317)
    assert corpus.read(numbers) == [everything[record] for record in numbers]
    assert corpus.read(np.array([], np.int64)) == []
    for outside in (-1, corpus.num_records):
        with pytest.raises(IndexError, match="expected 0 to"):
            corpus.read(np.array([0, outside]))


def test_threads_can_read_concurrently(corpus_path):
    corpus = open_corpus(corpus_path)
    everything = open_corpus(corpus_path).read(np.arange(corpus.num_records))
    wrong = []

    def work(seed):
        random = np.random.default_rng(seed)
        for _ in range(50):
            numbers = random.integers(0, corpus.num_records, 64)
            if corpus.read(numbers) != [everything[record] for record in numbers]:
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_limit_of_open_files_is_raised_and_named(corpus_path):
    limits = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard - 1), hard))
        corpus = open_corpus(corpus_path)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        with pytest.raises(
            UserError, match=r"got a limit of 3 open files, .* the 3 shards .*ulimit"
        ):
            corpus.read(np.arange(corpus.num_records))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_changed_byte_is_detected_by_verify_and_by_reading(corpus_path):
    verify(corpus_path)  # as long as nothing has changed
    shard = sorted(corpus_path.glob("*.array_record"))[1]
    content = bytearray(shard.read_bytes())
    corpus = open_corpus(corpus_path)
    expected = corpus.read(np.arange(corpus.num_records))
    location = content.index(expected[int(corpus._first_records[1])][:16])
    content[location] ^= 1
    shard.write_bytes(content)
    with pytest.raises(UserError, match=rf"{shard.name}: SHA-256 differs"):
        verify(corpus_path)
    with pytest.raises(UserError, match=rf"cannot read .*{shard.name}"):
        open_corpus(corpus_path).read(np.arange(corpus.num_records))


def test_missing_and_shortened_files_are_detected_on_opening(corpus_path):
    shard = sorted(corpus_path.glob("*.array_record"))[1]
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    with pytest.raises(UserError, match=rf"{shard.name}: got {len(content) - 1} bytes"):
        open_corpus(corpus_path)
    shard.unlink()
    for check in (open_corpus, verify):
        with pytest.raises(UserError, match=rf"{shard.name} is missing"):
            check(corpus_path)
    shard.write_bytes(content)
    index = corpus_path / "train.index.npy"
    np.save(index, np.load(index)[:-1])
    with pytest.raises(UserError, match=r"train\.index\.npy: got"):
        open_corpus(corpus_path)
    index.write_bytes(b"")
    with pytest.raises(UserError, match=r"cannot read .*train\.index\.npy"):
        open_corpus(corpus_path)


def test_folders_without_a_readable_corpus_are_refused(tmp_path, corpus_path):
    with pytest.raises(UserError, match="expected a prepared corpus"):
        open_corpus(tmp_path)
    with pytest.raises(UserError, match="no split 'vlidation': known: train"):
        open_corpus(corpus_path, "vlidation")
    manifest = json.loads((corpus_path / "manifest.json").read_text())
    (corpus_path / "manifest.json").write_text(json.dumps(manifest | {"format": 2}))
    with pytest.raises(UserError, match="got corpus format 2, expected 1"):
        open_corpus(corpus_path)
    (corpus_path / "manifest.json").write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        open_corpus(corpus_path)
    (corpus_path / "manifest.json").unlink()
    (corpus_path / "unfinished").mkdir()
    with pytest.raises(UserError, match="is an incomplete corpus"):
        open_corpus(corpus_path)


def test_the_fingerprint_depends_on_the_content_not_the_path(corpus_path, tmp_path, documents):
    moved = shutil.copytree(corpus_path, tmp_path / "moved")
    assert open_corpus(moved).fingerprint == open_corpus(corpus_path).fingerprint
    other = write_corpus(tmp_path / "other", documents[:-1])
    assert open_corpus(other).fingerprint != open_corpus(corpus_path).fingerprint


def test_the_fingerprint_depends_on_the_tokenizer(corpus_path):
    manifest = json.loads((corpus_path / "manifest.json").read_text())
    fingerprint = content_fingerprint(manifest)
    manifest["tokenizer"]["fingerprint"] = "a" * 64
    assert content_fingerprint(manifest) != fingerprint


def test_another_tokenizer_is_refused_naming_both_fingerprints(corpus_path):
    class Tokenizer:
        fingerprint = "f" * 64

    check_tokenizer(open_corpus(corpus_path), Tokenizer())
    Tokenizer.fingerprint = "a" * 64
    with pytest.raises(UserError, match=f"got fingerprint {'a' * 16}, expected {'f' * 16}"):
        check_tokenizer(open_corpus(corpus_path), Tokenizer())
