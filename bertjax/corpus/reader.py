"""Read a corpus: record format, manifest and fingerprint, random access in batches.

A corpus is a folder. Its `manifest.json` is written last, so that a folder without one is
unfinished. A *document* is one or more consecutive *records*; a record holds at most
`MAX_RECORD_TOKENS` tokens, ends at a sentence boundary where it can, and is stored as one
little-endian array: first the token ids, then the number of tokens of each of its sentences.
`SPLIT.index.npy` has a row for every record, so that examples are counted and laid out without
reading any.
"""

import functools
import hashlib
import json
import pathlib
import threading
from typing import Any, Protocol

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader
from jaxtyping import Bool, Int

from bertjax.errors import UserError, nearest
from bertjax.io import copies

FORMAT = 1
MAX_RECORD_TOKENS = 2048
INDEX_DTYPE = np.dtype([("tokens", "<u2"), ("sentences", "<u2"), ("starts_document", "?")])
UNFINISHED = "unfinished"
"""The folder, inside a corpus, of what an interrupted `prepare` continues with."""

READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"


class HasFingerprint(Protocol):
    """All that a corpus needs to know of a tokenizer."""

    fingerprint: str


class Corpus:
    """One split of a prepared corpus, open for reading.

    Attributes:
      path: The corpus's folder.
      split: The split's name.
      manifest: The whole `manifest.json`.
      dtype: Of the token ids in a record.
      fingerprint: SHA-256 over the shards and the tokenizer: equal for equal content.
    """

    def __init__(self, path: pathlib.Path, split: str, manifest: dict[str, Any]):
        self.path, self.split, self.manifest = path, split, manifest
        self.dtype = np.dtype(manifest["dtype"])
        self.fingerprint: str = manifest["fingerprint"]
        self._entry = manifest["splits"][split]
        self._index = _load_array(path / self._entry["index"]["file"])
        sizes = [shard["records"] for shard in self._entry["shards"]]
        self._first_records = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        self._readers: list[ArrayRecordReader | None] = [None] * len(sizes)
        self._locks = [threading.Lock() for _ in sizes]

    @property
    def num_documents(self) -> int:
        return self._entry["documents"]

    @property
    def num_records(self) -> int:
        return self._entry["records"]

    @property
    def num_tokens(self) -> int:
        return self._entry["tokens"]

    @functools.cached_property
    def tokens(self) -> Int[np.ndarray, " R"]:
        """How many tokens each record has."""
        return self._index["tokens"].astype(np.int64)

    @functools.cached_property
    def sentences(self) -> Int[np.ndarray, " R"]:
        """How many sentences each record has."""
        return self._index["sentences"].astype(np.int64)

    @functools.cached_property
    def starts_document(self) -> Bool[np.ndarray, " R"]:
        """Whether a record is the first one of its document."""
        return self._index["starts_document"].copy()

    @functools.cached_property
    def document(self) -> Int[np.ndarray, " R"]:
        """The number of the document that each record belongs to."""
        return np.cumsum(self.starts_document, dtype=np.int64) - 1

    @functools.cached_property
    def token_counts(self) -> Int[np.ndarray, " V"]:
        """How often each token id occurs in the split."""
        return _load_array(self.path / self._entry["counts"]["file"]).astype(np.int64)

    def read(self, records: Int[np.ndarray, " n"]) -> list[bytes]:
        """Reads records by number, in the order asked; safe to call from several threads.

        Shards are opened when first read. A batch costs one call for each shard that it touches.

        Raises:
          UserError: a shard is gone or damaged.
        """
        records = np.asarray(records, dtype=np.int64)
        if records.size and not 0 <= records.min() <= records.max() < self.num_records:
            raise IndexError(f"records of {self.path} are numbered 0 to {self.num_records - 1}")
        shards = np.searchsorted(self._first_records, records, side="right") - 1
        if len(self._readers) == 1 or (shards.size and shards.min() == shards.max()):
            return self._read_shard(int(shards[0]), records) if records.size else []
        found = np.empty(records.size, dtype=object)
        order = np.argsort(shards, kind="stable")
        starts = np.flatnonzero(np.diff(shards[order], prepend=-1))
        for rows in np.split(order, starts[1:]):
            if rows.size:
                found[rows] = self._read_shard(int(shards[rows[0]]), records[rows])
        return found.tolist()

    def _read_shard(self, shard: int, records: np.ndarray) -> list[bytes]:
        # One reader is shared by all threads: a reader for each would exhaust file descriptors.
        file = self._entry["shards"][shard]["file"]
        try:
            with self._locks[shard]:
                if self._readers[shard] is None:
                    self._readers[shard] = ArrayRecordReader(str(self.path / file), READER_OPTIONS)
                return self._readers[shard].read((records - self._first_records[shard]).tolist())
        except (RuntimeError, IndexError, ValueError) as error:
            raise UserError(f"{self.path / file} cannot be read ({error}); {_REPAIR}") from error


_REPAIR = "restore it from a copy, or delete the corpus folder and run `bertjax prepare` again"


def open_corpus(path: str | pathlib.Path, split: str = "train") -> Corpus:
    """Opens a split after checks that read no shard.

    Raises:
      UserError: there is no manifest, no such split, nothing in it, or its files are missing or
        are not those that the manifest names.
    """
    path = copies.local_copy(path)
    manifest = read_manifest(path)
    if split not in manifest["splits"]:
        raise UserError(f"{path} has no split {split!r}: {nearest(split, manifest['splits'])}")
    entry = manifest["splits"][split]
    if not entry["records"]:
        raise UserError(
            f"the {split} split of {path} is empty; prepare it again with more documents for it"
        )
    for shard in entry["shards"]:
        _check_size(path / shard["file"], shard["bytes"])
    for file in (entry["index"]["file"], entry["counts"]["file"]):
        if not (path / file).is_file():
            raise UserError(f"{path / file} is missing; {_REPAIR}")
    corpus = Corpus(path, split, manifest)
    _check_index(corpus)
    return corpus


def read_manifest(path: str | pathlib.Path) -> dict[str, Any]:
    """Reads a corpus's manifest.

    Raises:
      UserError: the folder holds no finished corpus, or one of another format.
    """
    path = copies.local_copy(path)
    file = path / "manifest.json"
    if (path / UNFINISHED).is_dir() and not file.is_file():
        raise UserError(
            f"{path} is an unfinished corpus; run the same `bertjax prepare` again to finish it"
        )
    if not file.is_file():
        raise UserError(f"{path} is no prepared corpus (no manifest.json); run `bertjax prepare`")
    try:
        manifest = json.loads(file.read_bytes())
        found = manifest["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} is damaged ({error!r}); {_REPAIR}") from error
    if found != FORMAT:
        raise UserError(
            f"{file} has format {found}, this version reads format {FORMAT}; prepare it again"
        )
    return manifest


def verify(path: str | pathlib.Path) -> None:
    """Hashes every file of a corpus and compares with its manifest.

    Raises:
      UserError: naming the first file that is missing or differs.
    """
    path = copies.local_copy(path)
    manifest = read_manifest(path)
    for entry in manifest["splits"].values():
        for file in [*entry["shards"], entry["index"], entry["counts"]]:
            if "bytes" in file:
                _check_size(path / file["file"], file["bytes"])
            if hash_file(path / file["file"]) != file["sha256"]:
                raise UserError(
                    f"{path / file['file']} does not have the manifest's SHA-256; {_REPAIR}"
                )
    if content_fingerprint(manifest) != manifest["fingerprint"]:
        raise UserError(f"{path / 'manifest.json'} does not have its own fingerprint; {_REPAIR}")


def check_tokenizer(corpus: Corpus, tokenizer: HasFingerprint) -> None:
    """Refuses a tokenizer other than the one that made the corpus.

    Raises:
      UserError: naming both fingerprints.
    """
    made_with = corpus.manifest["tokenizer"]["fingerprint"]
    if tokenizer.fingerprint != made_with:
        raise UserError(
            f"{corpus.path} was prepared with tokenizer {made_with[:16]}, not with "
            f"{tokenizer.fingerprint[:16]}; use {corpus.path / 'tokenizer'} or prepare it again"
        )


def content_fingerprint(manifest: dict[str, Any]) -> str:
    """SHA-256 over what determines a corpus's content: its shards, its index, its tokenizer."""
    splits = {
        name: [file["sha256"] for file in [*entry["shards"], entry["index"]]]
        for name, entry in manifest["splits"].items()
    }
    content = [manifest["format"], manifest["dtype"], manifest["tokenizer"]["fingerprint"], splits]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def hash_file(path: pathlib.Path) -> str:
    """SHA-256 of a file's bytes.

    Raises:
      UserError: it is missing.
    """
    try:
        with open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError:
        raise UserError(f"{path} is missing; {_REPAIR}") from None


def sentence_ids(record: bytes, num_sentences: int, dtype: np.dtype) -> list[np.ndarray]:
    """Takes a record apart into the token ids of its sentences."""
    values = np.frombuffer(record, dtype)
    lengths = values[values.size - num_sentences :]
    return np.split(values[: values.size - num_sentences], np.cumsum(lengths)[:-1])


def _check_size(path: pathlib.Path, expected: int) -> None:
    if not path.is_file():
        raise UserError(f"{path} is missing; {_REPAIR}")
    if path.stat().st_size != expected:
        raise UserError(
            f"{path} has {path.stat().st_size} bytes, the manifest says {expected}; {_REPAIR}"
        )


def _check_index(corpus: Corpus) -> None:
    entry = corpus._entry
    index = corpus._index
    found = (len(index), int(corpus.tokens.sum()), int(corpus.sentences.sum()))
    expected = (entry["records"], entry["tokens"], entry["sentences"])
    if found != expected or int(corpus.starts_document.sum()) != entry["documents"]:
        raise UserError(
            f"{corpus.path / entry['index']['file']} counts {found} records, tokens and "
            f"sentences, the manifest says {expected}; {_REPAIR}"
        )


def _load_array(path: pathlib.Path) -> np.ndarray:
    try:
        return np.load(path)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path} cannot be read ({error}); {_REPAIR}") from error
