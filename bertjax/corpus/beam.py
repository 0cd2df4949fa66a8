"""Prepare a corpus on many machines with Apache Beam: the same shards as on one machine.

    sources -> Read: documents -> Pack: records of each -> shards
                                      |                      ^
                                      +-> their sizes -> where shards end

On one machine a shard ends with the block of documents that fills it. Where that is depends on the
sizes of all documents before it; once these are known, every shard can be written by itself.
"""

import bisect
import dataclasses
import json
import pathlib
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
import grpc
import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions

from bertjax.corpus import reading
from bertjax.corpus.encoding import DocumentEncoder, Packed
from bertjax.corpus.reader import UNFINISHED
from bertjax.corpus.reading import Stream
from bertjax.corpus.shards import (
    SHARD,
    START,
    Position,
    SplitState,
    SplitWriter,
    disk_errors,
    shard_name,
)
from bertjax.corpus.sources import Source
from bertjax.corpus.text import Document
from bertjax.corpus.writer import CorpusWriter, final_name
from bertjax.errors import UserError
from bertjax.io import copies, storage
from bertjax.io.files import write_atomic
from bertjax.tokenizers import tokenizer as tokenizers

Place = tuple[int, int]
"""A document's: number of its source in the stream, number in the source."""

_SIZES = np.dtype([("source", "<i8"), ("document", "<i8"), ("characters", "<i8"), ("bytes", "<i8")])


@dataclasses.dataclass
class Piece:
    """A document of a split, as records."""

    split: str
    place: Place
    characters: int
    replaced: int
    packed: Packed


def fill(
    corpus: CorpusWriter,
    streams: Sequence[Stream],
    read: Callable[[Source], Iterator[Document]],
    packing: tuple[str, bool],
    shard_size: float,
    options: Sequence[str],
    bucket: Any = None,
) -> None:
    """Writes all shards of a corpus.

    Args:
      corpus: Nothing of it is finished; its folder is the same one on every worker, or its shards
        go to a bucket.
      streams: The input, which every worker can read.
      read: The documents of a source.
      packing: The arguments of `DocumentEncoder`; every worker can read the tokenizer.
      shard_size: MiB that make a shard full.
      options: Beam's own, as on a command line: `--runner=FlinkRunner` ...
      bucket: Where the corpus goes that is not to lie on a disk. All of its shards are there when
        this returns, under the names of finished ones.

    Raises:
      UserError: an earlier call without Beam finished shards; a job server does not answer, or
        breaks off; or as `prepare` does.
    """
    if any(state.position != START for state in corpus.states.values()):
        raise UserError(
            f"{corpus.path} was begun without --runner beam: finish it so, or delete the folder"
        )
    work = [
        (stream, number, source)
        for stream in streams
        for number, source in enumerate(stream.sources)
    ]
    unfinished = corpus.folder
    if bucket is not None:
        unfinished = bucket / UNFINISHED
        storage.remove_folder(unfinished)
    pipeline = beam.Pipeline(options=PipelineOptions(list(options)))
    packed = (
        pipeline
        | "sources" >> beam.Create(work)
        | "share sources" >> beam.Reshuffle()
        | "read" >> beam.ParDo(_Read(read))
        | "share documents" >> beam.Reshuffle()
        | "pack" >> beam.ParDo(_Pack(packing))
    )
    ends = (
        packed
        | "sizes" >> beam.Map(_size)
        | "sizes of a source" >> beam.GroupByKey()
        | "as arrays" >> beam.Map(_sizes)
        | "sizes of a split" >> beam.GroupByKey()
        | "shards begin" >> beam.Map(_beginnings, int(shard_size * 2**20))
    )
    _ = (
        packed
        | "shard of each" >> beam.Map(_with_shard, beam.pvalue.AsDict(ends))
        | "shards" >> beam.GroupByKey()
        | "write" >> beam.ParDo(_Write(str(unfinished), packing[0]))
    )
    try:
        pipeline.run().wait_until_finish()
    except (UserError, RuntimeError) as error:
        line = _line_of_worker(error)
        if line is None:
            raise
        raise UserError(line) from error
    except (grpc.FutureTimeoutError, grpc.RpcError) as error:
        raise UserError(_line_of_server(error, pipeline.options)) from error
    if bucket is not None:
        copies.download_files(
            unfinished, corpus.folder, wanted=lambda name: not name.endswith(SHARD)
        )
    for split, state in corpus.states.items():
        _take_over(corpus.folder, split, state)
    if bucket is not None:
        _name_shards(bucket, corpus.states)


class _Read(beam.DoFn):
    """The documents of a source."""

    def __init__(self, read: Callable[[Source], Iterator[Document]]):
        self._read = read

    def process(self, work: tuple[Stream, int, Source]) -> Iterator[tuple[str, Place, Document]]:
        stream, number, source = work
        for count, document in enumerate(self._read(source)):
            yield stream.choose(document.text.encode()), (number, count), document


class _Pack(beam.DoFn):
    """The records of a document."""

    def __init__(self, packing: tuple[str, bool]):
        self._packing = packing

    def setup(self) -> None:
        self._pack = DocumentEncoder(*self._packing)

    def process(self, work: tuple[str, Place, Document]) -> Iterator[Piece]:
        split, place, (text, replaced) = work
        yield Piece(split, place, len(text), replaced, self._pack([text]))


def _size(piece: Piece) -> tuple[tuple[str, int], tuple[int, int, int, int]]:
    source, document = piece.place
    size = sum(map(len, piece.packed.records))
    return (piece.split, source), (source, document, piece.characters, size)


def _sizes(
    of_source: tuple[tuple[str, int], Iterable[tuple[int, ...]]],
) -> tuple[str, np.ndarray]:
    (split, _), rows = of_source
    return split, np.array(sorted(rows), _SIZES)


def _beginnings(of_split: tuple[str, Iterable[np.ndarray]], full: int) -> tuple[str, list[Place]]:
    """The first document of each shard but the first, as one machine would have it."""
    split, parts = of_split
    found, characters, size, is_full = [], 0, 0, False
    for part in sorted(parts, key=lambda part: part["source"][0]):
        for source, document, more, bytes_more in part.tolist():
            if is_full:
                found.append((source, document))
                size, is_full = 0, False
            characters, size = characters + more, size + bytes_more
            if characters >= reading.BLOCK_CHARACTERS:
                characters, is_full = 0, size >= full
    return split, found


def _with_shard(
    piece: Piece, beginnings: Mapping[str, list[Place]]
) -> tuple[tuple[str, int], Piece]:
    return (piece.split, bisect.bisect_right(beginnings[piece.split], piece.place)), piece


class _Write(beam.DoFn):
    """Writes a shard as `SplitWriter` does, and what is known of it beside it."""

    def __init__(self, folder: str, tokenizer_path: str):
        self._folder, self._tokenizer_path = folder, tokenizer_path

    def setup(self) -> None:
        self._tokenizer = tokenizers.load(self._tokenizer_path)

    def process(self, shard: tuple[tuple[str, int], Iterable[Piece]]) -> None:
        (split, number), pieces = shard
        with disk_errors(self._folder), copies.upload_folder(self._folder) as folder:
            self._write(folder, split, number, pieces)

    def _write(
        self, folder: pathlib.Path, split: str, number: int, pieces: Iterable[Piece]
    ) -> None:
        state = SplitState(START, shards=[{}] * number)
        # A runner may try a shard twice at once.
        part = f"{split}-{number:05d}-{uuid.uuid4().hex}.part"
        writer = SplitWriter(folder, split, state, 0, self._tokenizer, part=part)
        for piece in sorted(pieces, key=lambda piece: piece.place):
            reason = "no_tokens" if piece.characters else "empty"
            dropped = Counter({reason: 1 - piece.packed.documents})
            writer.add(piece.packed, dropped=dropped, replaced=piece.replaced)
        writer.end_shard(START)
        state.shards = state.shards[number:]
        write_atomic(_said(folder, split, number), json.dumps(state.to_json()).encode())


def _said(folder: pathlib.Path, split: str, number: int) -> pathlib.Path:
    return folder / f"{shard_name(split, number)}.json"


def _take_over(folder: pathlib.Path, split: str, state: SplitState) -> None:
    """Adds up what was said of all shards of a split."""
    number = 0
    while (path := _said(folder, split, number)).exists():
        one = SplitState.from_json(json.loads(path.read_bytes()))
        state.shards += one.shards
        state.totals += one.totals
        state.dropped += one.dropped
        number += 1
    state.position = Position(1, 0, "")


def _name_shards(bucket: Any, states: Mapping[str, SplitState]) -> None:
    """Gives the shards of a bucket their last names, and clears away what lay beside them."""
    for split, state in states.items():
        count = len(state.shards)
        for number in range(count):
            made = bucket / UNFINISHED / shard_name(split, number)
            storage.move(made, bucket / final_name(split, number, count))
    storage.remove_folder(bucket / UNFINISHED)


def _line_of_server(error: Exception, options: PipelineOptions) -> str:
    server = f"Beam's job server {options.view_as(PortableOptions).job_endpoint}"
    if isinstance(error, grpc.FutureTimeoutError):
        return f"{server} does not answer: is it there? (--job_endpoint, --job_server_timeout)"
    return f"{server} broke off: {error.details()}; its log and its workers' say why"


def _line_of_worker(error: Exception) -> str | None:
    """What a `UserError` in a worker said, without Beam's words around it; None of other errors."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UserError):
            return str(cause).partition(" [while running")[0]
        cause = cause.__cause__ or cause.__context__
    mark = f"{UserError.__module__}.{UserError.__qualname__}: "
    if mark not in str(error):
        return None
    return str(error).rpartition(mark)[2].splitlines()[0].partition(" [while running")[0]
