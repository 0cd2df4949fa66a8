"""Extract the features of a text file in chunks, and write them atomically in one of four formats.

npz, safetensors: named arrays. `features` [rows layers width] and `layers`; for token features also
`ids` [rows], `spans` [rows 2] (characters from, up to) and `begins` [texts + 1], the first row of
each text.
npy: one array [texts width], of one layer.
parquet: a row for each text or token, with columns `text` and `layer_N`; for token features also
`token`, `piece`, `begin` and `end`.

Texts are read in sequences [CLS] text [SEP]; token features exclude the special tokens. Memory is
bounded by the size of a chunk.
"""

import dataclasses
import itertools
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Int, Int32, Int64

from bertjax.data.characters import CharacterTable
from bertjax.data.sequence_template import SequenceTemplate
from bertjax.errors import UserError
from bertjax.inference.array_files import WRITERS, ArrayWriter
from bertjax.interfaces import Tokenizer
from bertjax.io import storage
from bertjax.tasks.sequences import Pairs

FORMATS = (*WRITERS, ".parquet")

_ROWS_PER_GROUP = 1 << 14
"""Rows of a row group of Parquet, which are in memory at the same time."""


def check_output(path: pathlib.Path) -> None:
    """Checks that features can be written to a file.

    Raises:
      UserError: the format is unknown, the file exists or cannot be written, or pyarrow is missing.
    """
    if path.suffix not in FORMATS:
        known = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        raise UserError(f"output: got {path}, expected a file name with {known}")
    if path.exists():
        raise UserError(f"{path} exists; pass a new file, or remove it first")
    storage.check_file(path)
    if path.suffix == ".parquet":
        _import_pyarrow()


def check_contents(path: pathlib.Path, layers: list[int], *, tokens: bool) -> None:
    """Checks that a format can hold the features.

    Raises:
      UserError: the file is an `.npy`, which has one array, and rows are tokens, or of more layers.
    """
    if path.suffix == ".npy" and (tokens or len(layers) > 1):
        got = "a row per token" if tokens else f"layers {layers}"
        raise UserError(
            f"output: got {got} for {path.name}, expected one vector per text in an .npy; pass "
            "--pooling mean and one layer, or a file name with .npz or .safetensors"
        )


class ParquetWriter(ArrayWriter):
    """Writes a `.parquet`, with row groups of `_ROWS_PER_GROUP` rows."""

    def __init__(
        self, path: pathlib.Path, layers: list[int], folder: pathlib.Path, tokenizer: Tokenizer
    ):
        super().__init__(path, layers, folder)
        self._tokenizer = tokenizer

    def _assemble(self, whole: pathlib.Path) -> None:
        pyarrow, parquet = _import_pyarrow()
        arrays = {name: self.read(name) for name in self.headers}
        features, writer = arrays["features"], None
        for start in range(0, len(features), _ROWS_PER_GROUP):
            group = features[start : start + _ROWS_PER_GROUP]
            rows = np.arange(start, start + len(group))
            columns = self._token_columns(arrays, rows) if "ids" in arrays else {"text": rows}
            for index, layer in enumerate(self._layers):
                flat = pyarrow.array(np.ascontiguousarray(group[:, index]).reshape(-1))
                width = group.shape[2]
                columns[f"layer_{layer}"] = pyarrow.FixedSizeListArray.from_arrays(flat, width)
            table = pyarrow.table(columns)
            writer = writer or parquet.ParquetWriter(whole, table.schema)
            writer.write_table(table)
        writer.close()

    def _token_columns(
        self, arrays: Mapping[str, np.ndarray], rows: Int[np.ndarray, " n"]
    ) -> dict[str, Any]:
        texts = np.searchsorted(arrays["begins"], rows, side="right") - 1
        spans = arrays["spans"][rows]
        return {
            "text": texts,
            "token": rows - arrays["begins"][texts],
            "piece": self._tokenizer.ids_to_pieces(arrays["ids"][rows].tolist()),
            "begin": spans[:, 0],
            "end": spans[:, 1],
        }


def open_writer(
    path: pathlib.Path, layers: list[int], folder: pathlib.Path, tokenizer: Tokenizer
) -> ArrayWriter:
    """Returns the writer of a feature file, by its suffix; see `ArrayWriter`."""
    if path.suffix in WRITERS:
        return WRITERS[path.suffix](path, layers, folder)
    return ParquetWriter(path, layers, folder, tokenizer)


def _import_pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(
            ".parquet requires pyarrow: pip install 'bertjax[parquet]', or pass an .npz file"
        ) from None
    return pyarrow, parquet


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Consecutive texts, as tokens.

    Attributes:
      first: Index of the first text.
      pairs: Sequences of the texts, with special tokens.
      text_start: Position of the first token of a text in its sequence.
      ids: Tokens of all texts, without special tokens.
      spans: Character span of each token in its text: from, up to; empty if they were not read.
      counts: Number of tokens of each text.
      num_truncated: Number of truncated texts.
    """

    first: int
    pairs: Pairs
    text_start: int
    ids: Int32[np.ndarray, " T"]
    spans: Int32[np.ndarray, "S 2"]
    counts: Int64[np.ndarray, " n"]
    num_truncated: int

    @property
    def starts(self) -> Int[np.ndarray, " n"]:
        """Index of the first token of each text in `ids`."""
        return np.cumsum(self.counts) - self.counts


@dataclasses.dataclass(frozen=True)
class TextReader:
    """Encodes texts to chunks.

    Attributes:
      tokenizer: Tokenizer of the model.
      max_seq_length: Maximum number of tokens of a sequence, including special tokens.
      truncate: Whether longer texts are truncated, instead of an error.
      cls_last: Whether [CLS] ends a sequence, as in XLNet.
      max_chars_per_word: Characters per word of `char_ids`; 0 for models without character inputs.
      texts_per_chunk: Number of texts per chunk.
      reads_spans: Whether the character spans of tokens are read, which takes longer.
    """

    tokenizer: Tokenizer
    max_seq_length: int
    truncate: bool = False
    cls_last: bool = False
    max_chars_per_word: int = 0
    texts_per_chunk: int = 1024
    reads_spans: bool = True

    @property
    def max_text_tokens(self) -> int:
        """Maximum number of tokens of a text, without special tokens."""
        return self.max_seq_length - self._template.num_special_tokens(1)

    @property
    def _template(self) -> SequenceTemplate:
        return SequenceTemplate.from_tokenizer(self.tokenizer, cls_last=self.cls_last)

    def read_chunks(self, texts: Iterable[str], source: str, first: int = 0) -> Iterator[Chunk]:
        """Encodes texts in chunks, in order.

        Args:
          texts: Texts.
          source: Name of the texts in errors.
          first: Number of the first text.

        Raises:
          UserError: a text is too long, or `max_seq_length` too short.
        """
        if self.max_text_tokens < 1:
            raise UserError(
                f"max_length: got {self.max_seq_length}, expected at least one token more than "
                "the special tokens"
            )
        character_table = None
        if self.max_chars_per_word:
            character_table = CharacterTable(self.tokenizer, self.max_chars_per_word)
        texts = iter(texts)
        while group := list(itertools.islice(texts, self.texts_per_chunk)):
            yield self._encode_chunk(group, first, source, character_table)
            first += len(group)

    def _encode_chunk(
        self, texts: list[str], first: int, source: str, character_table: CharacterTable | None
    ) -> Chunk:
        encoded, spans = self._encode(texts)
        limit = self.max_text_tokens
        lengths = np.array([len(ids) for ids in encoded], np.int64)
        longest = int(lengths.argmax())
        if lengths[longest] > limit and not self.truncate:
            raise UserError(
                f"{source}, line {first + longest + 1}: text too long: got {lengths[longest]} "
                f"tokens, expected at most {limit}; shorten it, or pass --truncate"
            )
        kept = [ids[:limit] for ids in encoded]
        counts = np.minimum(lengths, limit)
        frame = self._template.frame([counts])
        frame.write(0, kept)
        columns, tables = {}, {}
        if character_table is not None:
            columns["char_ids"] = self._character_rows(texts, counts, character_table)
            tables["char_ids"] = character_table.table()
        pairs = Pairs.from_frame(frame, self._template, columns=columns, tables=tables)
        kept_spans = itertools.chain.from_iterable(each[:limit] for each in spans)
        return Chunk(
            first=first,
            pairs=pairs,
            text_start=int(frame.segment_starts[0][0]),
            ids=np.fromiter(itertools.chain.from_iterable(kept), np.int32),
            spans=np.array(list(kept_spans), np.int32).reshape(-1, 2),
            counts=counts,
            num_truncated=int((lengths > limit).sum()),
        )

    def _encode(self, texts: list[str]) -> tuple[list[list[int]], list[list[tuple[int, int]]]]:
        """Returns the ids of each text, and their spans, if they are read."""
        if not self.reads_spans:
            return self.tokenizer.encode_batch(texts), []
        encoded = [self.tokenizer.encode_with_offsets(text) for text in texts]
        return [ids for ids, _ in encoded], [spans for _, spans in encoded]

    def _character_rows(
        self, texts: list[str], counts: Int64[np.ndarray, " n"], character_table: CharacterTable
    ) -> Int32[np.ndarray, " T"]:
        character_table.clear_unknown()
        frame = self._template.map_ids(character_table.token_row).frame([counts])
        frame.write(0, (row[: self.max_text_tokens] for row in character_table.lookup(texts)))
        return frame.ids
