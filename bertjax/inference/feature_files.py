"""Write extracted features to `.npz` or `.parquet` in chunks of texts, atomically.

npz: named arrays. `features` [rows layers width]; for token features also `ids` [rows], `spans`
[rows 2] and `begins` [texts + 1], the first row of each text; `layers` lists the layers.
parquet: one row for each text or token, with columns `text`, `layer_N`; for token features also
`token`, `piece`, `begin`, `end`.

A chunk is held in memory at a time. Its texts become sequences with the tokenizer's special tokens,
[CLS] text [SEP]; features are those of the text's own tokens.
"""

import dataclasses
import itertools
import pathlib
import shutil
import uuid
import zipfile
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from jaxtyping import Float32, Int, Int32, Int64

from bertjax.data.characters import Spelling
from bertjax.errors import UserError
from bertjax.io import storage
from bertjax.tasks.sequences import Pairs

FORMATS = (".npz", ".parquet")


def check(path: pathlib.Path) -> None:
    """Refuses early what cannot be written.

    Raises:
      UserError: an unknown format, something is there already, no file can be written there, or a
        package is missing.
    """
    if path.suffix not in FORMATS:
        raise UserError(f"--out {path}: expected a name that ends in {' or '.join(FORMATS)}")
    if path.exists():
        raise UserError(f"{path} exists: name a new file, or remove it first")
    storage.check_file(path)
    if path.suffix == ".parquet":
        _pyarrow()


class NpzWriter:
    """Arrays that grow in files of their own until all rows are known."""

    def __init__(self, path: pathlib.Path, layers: list[int]):
        self._path, self._layers = path, np.array(layers)
        self._folder = path.with_name(f".{path.name}.unfinished-{uuid.uuid4().hex}")
        self._files: dict[str, Any] = {}
        self._shapes: dict[str, tuple] = {}

    def __enter__(self) -> "NpzWriter":
        self._folder.mkdir()
        return self

    def __exit__(self, kind, *error: object) -> None:
        try:
            for file in self._files.values():
                file.close()
            if kind is None:
                self._assemble()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, chunk: Any, features: Float32[np.ndarray, "rows K D"], *, tokens: bool) -> None:
        """Adds the features of a chunk, of its tokens or of its texts."""
        self._grow("features", features)
        if tokens:
            self._grow("ids", chunk.ids)
            self._grow("spans", chunk.spans)
            self._grow("begins", chunk.starts + self._shapes["ids"][0] - len(chunk.ids))

    def _grow(self, name: str, rows: np.ndarray) -> None:
        if name not in self._files:
            self._files[name] = (self._folder / name).open("wb")
            self._shapes[name] = (0, rows.shape[1:], rows.dtype)
        count, shape, dtype = self._shapes[name]
        self._shapes[name] = (count + len(rows), shape, dtype)
        self._files[name].write(np.ascontiguousarray(rows).data)

    def _assemble(self) -> None:
        whole = self._folder / "whole"
        with zipfile.ZipFile(whole, "w", allowZip64=True) as archive:
            for name, (count, shape, dtype) in self._shapes.items():
                extra = np.array([self._shapes["ids"][0]], dtype) if name == "begins" else None
                header = {"fortran_order": False, "descr": np.lib.format.dtype_to_descr(dtype)}
                header["shape"] = (count + (extra is not None), *shape)
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array_header_2_0(entry, header)
                    with (self._folder / name).open("rb") as rows:
                        shutil.copyfileobj(rows, entry)
                    if extra is not None:
                        entry.write(extra.data)
            with archive.open("layers.npy", "w") as entry:
                np.lib.format.write_array(entry, self._layers)
        whole.replace(self._path)


class ParquetWriter:
    """One group of rows for each chunk."""

    def __init__(self, path: pathlib.Path, layers: list[int], tokenizer: Any):
        self._path, self._layers, self._tokenizer = path, layers, tokenizer
        self._part = path.with_name(f".{path.name}.unfinished-{uuid.uuid4().hex}")
        self._writer: Any = None

    def __enter__(self) -> "ParquetWriter":
        return self

    def __exit__(self, kind, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()
        if kind is None and self._writer is not None:
            self._part.replace(self._path)
        self._part.unlink(missing_ok=True)

    def add(self, chunk: Any, features: Float32[np.ndarray, "rows K D"], *, tokens: bool) -> None:
        """Adds the features of a chunk, of its tokens or of its texts."""
        pyarrow, parquet = _pyarrow()
        columns = self._of_tokens(chunk) if tokens else {"text": _numbers(chunk)}
        for index, layer in enumerate(self._layers):
            flat = pyarrow.array(np.ascontiguousarray(features[:, index]).reshape(-1))
            width = features.shape[2]
            columns[f"layer_{layer}"] = pyarrow.FixedSizeListArray.from_arrays(flat, width)
        table = pyarrow.table(columns)
        if self._writer is None:
            self._writer = parquet.ParquetWriter(self._part, table.schema)
        self._writer.write_table(table)

    def _of_tokens(self, chunk: Any) -> dict[str, Any]:
        within = np.arange(len(chunk.ids)) - np.repeat(chunk.starts, chunk.counts)
        return {
            "text": np.repeat(_numbers(chunk), chunk.counts),
            "token": within,
            "piece": self._tokenizer.pieces(chunk.ids.tolist()),
            "begin": chunk.spans[:, 0],
            "end": chunk.spans[:, 1],
        }


def writer(path: pathlib.Path, layers: list[int], tokenizer: Any) -> NpzWriter | ParquetWriter:
    """What writes a file of this name."""
    if path.suffix == ".npz":
        return NpzWriter(path, layers)
    return ParquetWriter(path, layers, tokenizer)


def _numbers(chunk: Any) -> Int[np.ndarray, " n"]:
    return chunk.first + np.arange(len(chunk.counts))


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(
            ".parquet needs pyarrow: pip install 'bertjax[parquet]', or name a file .npz"
        ) from None
    return pyarrow, parquet


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Some texts, one after the other.

    Attributes:
      first: The number of the first one.
      pairs: Their sequences, with special tokens.
      begin: Where a text begins in its sequence.
      cls: Where [CLS] stands in each sequence.
      ids: All tokens of all texts, without special ones.
      spans: Which characters of its text each token covers: from, up to.
      counts: How many tokens each text has.
      truncated: The number of texts that have lost their ends.
    """

    first: int
    pairs: Pairs
    begin: int
    cls: Int64[np.ndarray, " n"]
    ids: Int32[np.ndarray, " T"]
    spans: Int32[np.ndarray, "T 2"]
    counts: Int64[np.ndarray, " n"]
    truncated: int

    @property
    def starts(self) -> Int[np.ndarray, " n"]:
        """Where each text begins in `ids`."""
        return np.cumsum(self.counts) - self.counts


@dataclasses.dataclass(frozen=True)
class Reader:
    """From lines of text to chunks.

    Attributes:
      tokenizer: An `interfaces.Tokenizer`.
      max_seq_length: Tokens of a sequence, special ones included.
      truncate: Whether longer texts lose their ends, instead of being refused.
      cls_last: Whether [CLS] ends a sequence.
      max_chars_per_word: Characters of each word, as `char_ids`; 0 for none.
      texts_per_chunk: How many texts are in memory.
    """

    tokenizer: Any
    max_seq_length: int
    truncate: bool = False
    cls_last: bool = False
    max_chars_per_word: int = 0
    texts_per_chunk: int = 1024

    @property
    def room(self) -> int:
        """How many tokens of a text fit."""
        specials = (self.tokenizer.cls_id, self.tokenizer.sep_id)
        return self.max_seq_length - sum(special is not None for special in specials)

    def chunks(self, texts: Iterable[str], source: str) -> Iterator[Chunk]:
        """The chunks of some texts, in order; `source` names these in errors.

        Raises:
          UserError: a text is too long.
        """
        if self.room < 1:
            raise UserError(f"max_seq_length={self.max_seq_length} leaves no room for a token")
        spelling = None
        if self.max_chars_per_word:
            spelling = Spelling(self.tokenizer, self.max_chars_per_word)
        texts, first = iter(texts), 0
        while some := list(itertools.islice(texts, self.texts_per_chunk)):
            yield self._chunk(some, first, source, spelling)
            first += len(some)

    def _chunk(self, texts: list[str], first: int, source: str, spelling: Spelling | None) -> Chunk:
        encoded = [self.tokenizer.encode_with_offsets(text) for text in texts]
        longest = max(range(len(texts)), key=lambda number: len(encoded[number][0]))
        if len(encoded[longest][0]) > self.room and not self.truncate:
            raise UserError(
                f"{source}, line {first + longest + 1}: {len(encoded[longest][0])} tokens, more "
                f"than the {self.room} that are read at a time: cut the text, or have it cut with "
                "--truncate"
            )
        kept = [(ids[: self.room], spans[: self.room]) for ids, spans in encoded]
        counts = np.array([len(ids) for ids, _ in kept], np.int64)
        ends = self.tokenizer.cls_id, self.tokenizer.sep_id
        tokens = [self._surrounded(ids, *ends) for ids, _ in kept]
        lengths = np.array([len(row) for row in tokens], np.int64)
        columns, tables = {}, {}
        if spelling is not None:
            columns["char_ids"], tables["char_ids"] = self._spelled(texts, spelling)
        pairs = Pairs(
            tokens=_joined(tokens),
            starts=np.cumsum(lengths) - lengths,
            lengths=lengths,
            first_lengths=lengths,
            pad_id=self.tokenizer.pad_id,
            cls_last=self.cls_last,
            columns=columns,
            tables=tables,
        )
        spans = np.array(list(itertools.chain.from_iterable(s for _, s in kept)), np.int32)
        return Chunk(
            first=first,
            pairs=pairs,
            begin=int(self.tokenizer.cls_id is not None and not self.cls_last),
            cls=lengths - 1 if self.cls_last else np.zeros(len(texts), np.int64),
            ids=_joined([ids for ids, _ in kept]),
            spans=spans.reshape(-1, 2),
            counts=counts,
            truncated=sum(len(ids) > self.room for ids, _ in encoded),
        )

    def _spelled(self, texts: list[str], spelling: Spelling) -> tuple[np.ndarray, np.ndarray]:
        spelling.forget()
        ends = [
            None if identity is None else spelling.number(identity)
            for identity in (self.tokenizer.cls_id, self.tokenizer.sep_id)
        ]
        rows = [self._surrounded(row[: self.room], *ends) for row in spelling.numbers(texts)]
        return _joined(rows), spelling.table()

    def _surrounded(self, ids: list[int], cls: int | None, sep: int | None) -> list[int]:
        cls, sep = ([] if special is None else [special] for special in (cls, sep))
        return [*ids, *sep, *cls] if self.cls_last else [*cls, *ids, *sep]


def _joined(rows: list[list[int]]) -> Int32[np.ndarray, " T"]:
    return np.fromiter(itertools.chain.from_iterable(rows), np.int32)
