"""Read a corpus: record format, manifest, fingerprint, random access to batches of records.

A corpus is a folder. Its `manifest.json` is written last: a folder without one is incomplete. A
*document* is one or more consecutive *records*. A record has at most `MAX_RECORD_TOKENS` tokens,
ends at a sentence boundary if possible, and is stored as one little-endian array: the token ids,
followed by the number of tokens of each of its sentences. `SPLIT.index.npy` has a row for every
record, from which examples are counted and located without reading records.
"""

import contextlib
import errno
import functools
import hashlib
import json
import os
import pathlib
import resource
import threading
from typing import Any

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader
from jaxtyping import Bool, Int

from bertjax.errors import UserError, nearest
from bertjax.interfaces import Tokenizer
from bertjax.io import copies

FORMAT = 1
MAX_RECORD_TOKENS = 2048
INDEX_DTYPE = np.dtype([("tokens", "<u2"), ("sentences", "<u2"), ("starts_document", "?")])
UNFINISHED = "unfinished"
"""Folder inside a corpus with finished shards, from which an interrupted `prepare` resumes."""

READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"


class Corpus:
    """One split of a prepared corpus, open for reading.

    Attributes:
      path: The corpus's folder.
      split: The split's name.
      manifest: The content of `manifest.json`.
      dtype: The dtype of a record.
      fingerprint: SHA-256 over the shards and the tokenizer; equal for equal content.
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
        """Number of tokens of each record."""
        return self._index["tokens"].astype(np.int64)

    @functools.cached_property
    def sentences(self) -> Int[np.ndarray, " R"]:
        """Number of sentences of each record."""
        return self._index["sentences"].astype(np.int64)

    @functools.cached_property
    def starts_document(self) -> Bool[np.ndarray, " R"]:
        """Whether each record is the first one of its document."""
        return self._index["starts_document"].copy()

    @functools.cached_property
    def document(self) -> Int[np.ndarray, " R"]:
        """Index of the document that each record belongs to."""
        return np.cumsum(self.starts_document, dtype=np.int64) - 1

    @functools.cached_property
    def token_counts(self) -> Int[np.ndarray, " V"]:
        """Number of occurrences of each token id in the split."""
        return _load_array(self.path / self._entry["counts"]["file"]).astype(np.int64)

    def read(self, records: Int[np.ndarray, " n"]) -> list[bytes]:
        """Read records by index, in the given order; thread-safe.

        A shard is opened when it is first read. A batch costs one call for each of its shards.

        Raises:
          UserError: A shard is missing or damaged.
        """
        records = np.asarray(records, dtype=np.int64)
        if records.size and not 0 <= records.min() <= records.max() < self.num_records:
            raise IndexError(
                f"records of {self.path}: got {records.min()} to {records.max()}, expected 0 to "
                f"{self.num_records - 1}"
            )
        shards = np.searchsorted(self._first_records, records, side="right") - 1
        if len(self._readers) == 1 or (shards.size and shards.min() == shards.max()):
            return self._read_shard(int(shards[0]), records) if records.size else []
        result = np.empty(records.size, dtype=object)
        order = np.argsort(shards, kind="stable")
        starts = np.flatnonzero(np.diff(shards[order], prepend=-1))
        for rows in np.split(order, starts[1:]):
            if rows.size:
                result[rows] = self._read_shard(int(shards[rows[0]]), records[rows])
        return result.tolist()

    def _read_shard(self, shard: int, records: np.ndarray) -> list[bytes]:
        # All threads share one reader per shard: one per thread would exhaust file descriptors.
        file = self._entry["shards"][shard]["file"]
        try:
            with self._locks[shard]:
                if self._readers[shard] is None:
                    self._readers[shard] = ArrayRecordReader(str(self.path / file), READER_OPTIONS)
                return self._readers[shard].read((records - self._first_records[shard]).tolist())
        except (RuntimeError, IndexError, ValueError) as error:
            if os.strerror(errno.EMFILE) in str(error):
                limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
                raise UserError(
                    f"cannot open {self.path / file}: got a limit of {limit:,} open files, "
                    f"expected more than the {len(self._readers):,} shards of the split; raise it "
                    "with `ulimit -n`, or prepare the corpus again with a larger --shard_size"
                ) from error
            raise UserError(f"cannot read {self.path / file} ({error}); {_REPAIR}") from error


_REPAIR = "restore it from a copy, or delete the corpus folder and run `bertjax prepare` again"


def open_corpus(path: str | pathlib.Path, split: str = "train") -> Corpus:
    """Open a split of a corpus, checking file sizes and the index against the manifest.

    The process's limit of open files is raised as far as the system allows: a shard that has been
    read stays open.

    Raises:
      UserError: There is no manifest or no such split, the split is empty, or a file is missing or
        does not agree with the manifest.
    """
    path = copies.local_copy(path)
    manifest = read_manifest(path)
    if split not in manifest["splits"]:
        raise UserError(f"{path} has no split {split!r}: {nearest(split, manifest['splits'])}")
    entry = manifest["splits"][split]
    if not entry["records"]:
        raise UserError(
            f"{path}: the split {split!r} has no records; prepare the corpus with more documents "
            "for it"
        )
    for shard in entry["shards"]:
        _check_size(path / shard["file"], shard["bytes"])
    for file in (entry["index"]["file"], entry["counts"]["file"]):
        if not (path / file).is_file():
            raise UserError(f"{path / file} is missing; {_REPAIR}")
    _raise_open_files_limit()
    corpus = Corpus(path, split, manifest)
    _check_index(corpus)
    return corpus


def _raise_open_files_limit() -> None:
    """Raise the soft limit of open files, which is often 1,024, to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # Some systems refuse the hard limit that they report.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def read_manifest(path: str | pathlib.Path) -> dict[str, Any]:
    """Read the manifest of a corpus.

    Raises:
      UserError: The folder has no complete corpus, or one of another format.
    """
    path = copies.local_copy(path)
    file = path / "manifest.json"
    if (path / UNFINISHED).is_dir() and not file.is_file():
        raise UserError(
            f"{path} is an incomplete corpus; run the same `bertjax prepare` again to finish it"
        )
    if not file.is_file():
        raise UserError(
            f"{path}: found no manifest.json, expected a prepared corpus; run `bertjax prepare`"
        )
    try:
        manifest = json.loads(file.read_bytes())
        format = manifest["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} is damaged ({error!r}); {_REPAIR}") from error
    if format != FORMAT:
        raise UserError(
            f"{file}: got corpus format {format}, expected {FORMAT}; prepare the corpus again"
        )
    return manifest


def verify(path: str | pathlib.Path) -> None:
    """Check the SHA-256 of every file of a corpus against its manifest.

    Raises:
      UserError: A file is missing or differs.
    """
    path = copies.local_copy(path)
    manifest = read_manifest(path)
    for entry in manifest["splits"].values():
        for file in [*entry["shards"], entry["index"], entry["counts"]]:
            if "bytes" in file:
                _check_size(path / file["file"], file["bytes"])
            if hash_file(path / file["file"]) != file["sha256"]:
                raise UserError(
                    f"{path / file['file']}: SHA-256 differs from the manifest's; {_REPAIR}"
                )
    if content_fingerprint(manifest) != manifest["fingerprint"]:
        raise UserError(
            f"{path / 'manifest.json'}: the fingerprint differs from that of the files; {_REPAIR}"
        )


def check_tokenizer(corpus: Corpus, tokenizer: Tokenizer) -> None:
    """Check that a tokenizer is the one that the corpus was prepared with.

    Raises:
      UserError: The fingerprints differ.
    """
    expected = corpus.manifest["tokenizer"]["fingerprint"]
    if tokenizer.fingerprint != expected:
        raise UserError(
            f"tokenizer mismatch: got fingerprint {tokenizer.fingerprint[:16]}, expected "
            f"{expected[:16]}, with which {corpus.path} was prepared; use "
            f"{corpus.path / 'tokenizer'} or prepare the corpus again"
        )


def content_fingerprint(manifest: dict[str, Any]) -> str:
    """Compute the SHA-256 over the hashes of a corpus's shards, index and tokenizer."""
    splits = {
        name: [file["sha256"] for file in [*entry["shards"], entry["index"]]]
        for name, entry in manifest["splits"].items()
    }
    content = [manifest["format"], manifest["dtype"], manifest["tokenizer"]["fingerprint"], splits]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def hash_file(path: pathlib.Path) -> str:
    """Compute the SHA-256 of a file.

    Raises:
      UserError: The file is missing.
    """
    try:
        with open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError:
        raise UserError(f"{path} is missing; {_REPAIR}") from None


def sentence_ids(record: bytes, num_sentences: int, dtype: np.dtype) -> list[np.ndarray]:
    """Split a record into the token ids of its sentences."""
    values = np.frombuffer(record, dtype)
    lengths = values[values.size - num_sentences :]
    return np.split(values[: values.size - num_sentences], np.cumsum(lengths)[:-1])


def _check_size(path: pathlib.Path, expected: int) -> None:
    if not path.is_file():
        raise UserError(f"{path} is missing; {_REPAIR}")
    if path.stat().st_size != expected:
        raise UserError(
            f"{path}: got {path.stat().st_size} bytes, expected {expected} by the manifest; "
            f"{_REPAIR}"
        )


def _check_index(corpus: Corpus) -> None:
    entry = corpus._entry
    index = corpus._index
    counts = {
        "records": len(index),
        "tokens": int(corpus.tokens.sum()),
        "sentences": int(corpus.sentences.sum()),
        "documents": int(corpus.starts_document.sum()),
    }
    for name, count in counts.items():
        if count != entry[name]:
            raise UserError(
                f"{corpus.path / entry['index']['file']}: got {count} {name}, expected "
                f"{entry[name]} by the manifest; {_REPAIR}"
            )


def _load_array(path: pathlib.Path) -> np.ndarray:
    try:
        return np.load(path)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"cannot read {path} ({error}); {_REPAIR}") from error
