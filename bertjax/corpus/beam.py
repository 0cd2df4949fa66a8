"""Prepare a corpus on many machines with Apache Beam: the same shards as on one machine.

    sources -> Read: documents -> Encode: records -> Write: shards
                                      |                ^
                                      +-> sizes -> first document of each shard

On one machine a shard ends with the block of documents that fills it, which depends on the sizes of
all documents before it. So the sizes are gathered first, four numbers per document; then all shards
are written independently. array_record writes local files, so that a worker copies a finished shard
to a bucket. Retrying failed workers is left to Beam's runner; an interrupted pipeline starts again
from the beginning.
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
from bertjax.corpus.documents import Document
from bertjax.corpus.encoding import DocumentEncoder, EncodedDocuments
from bertjax.corpus.reader import UNFINISHED
from bertjax.corpus.reading import Stream
from bertjax.corpus.shards import (
    SHARD_SUFFIX,
    START,
    Position,
    SplitState,
    SplitWriter,
    disk_errors,
    shard_name,
)
from bertjax.corpus.sources import Source
from bertjax.corpus.writer import CorpusWriter, final_shard_name
from bertjax.errors import UserError
from bertjax.io import copies, storage
from bertjax.io.files import write_atomic
from bertjax.tokenizers import tokenizer as tokenizers

DocumentId = tuple[int, int]
"""(index of the source in its stream, index of the document in the source)."""

_SIZES = np.dtype([("source", "<i8"), ("document", "<i8"), ("characters", "<i8"), ("bytes", "<i8")])


@dataclasses.dataclass
class EncodedDocument:
    """The records of one document, with its split and position."""

    split: str
    id: DocumentId
    characters: int
    replaced: int
    encoded: EncodedDocuments


def write_shards(
    corpus: CorpusWriter,
    streams: Sequence[Stream],
    read: Callable[[Source], Iterator[Document]],
    encoder_arguments: tuple[str, bool],
    shard_size: float,
    options: Sequence[str],
    bucket: Any = None,
) -> None:
    """Write all shards of a corpus with a Beam pipeline.

    Args:
      corpus: The corpus, without finished shards. Its folder must be on a disk that all workers
        share, unless `bucket` is given.
      streams: The inputs, which all workers can read.
      read: Reads the documents of a source.
      encoder_arguments: The arguments of `DocumentEncoder`; all workers can read the tokenizer.
      shard_size: Size in MiB from which a shard counts as full.
      options: Options of the Beam pipeline, as on a command line: `--runner=FlinkRunner` ...
      bucket: The folder in a bucket for the corpus, if it is not written to a disk. Its shards have
        their final names when this returns.

    Raises:
      UserError: An earlier call without Beam has finished shards, the job server does not reply or
        fails, or for the reasons of `prepare`.
    """
    if any(state.position != START for state in corpus.states.values()):
        raise UserError(
            f"{corpus.path} has shards written without --runner beam; finish it without, or delete "
            "the folder"
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
    encoded = (
        pipeline
        | "sources" >> beam.Create(work)
        | "share sources" >> beam.Reshuffle()
        | "read" >> beam.ParDo(_Read(read))
        | "share documents" >> beam.Reshuffle()
        | "encode" >> beam.ParDo(_Encode(encoder_arguments))
    )
    starts = (
        encoded
        | "sizes" >> beam.Map(_size)
        | "sizes of a source" >> beam.GroupByKey()
        | "as arrays" >> beam.Map(_to_array)
        | "sizes of a split" >> beam.GroupByKey()
        | "shard starts" >> beam.Map(_find_shard_starts, int(shard_size * 2**20))
    )
    _ = (
        encoded
        | "shard of each" >> beam.Map(_with_shard, beam.pvalue.AsDict(starts))
        | "shards" >> beam.GroupByKey()
        | "write" >> beam.ParDo(_Write(str(unfinished), encoder_arguments[0]))
    )
    try:
        pipeline.run().wait_until_finish()
    except (UserError, RuntimeError) as error:
        message = _worker_message(error)
        if message is None:
            raise
        raise UserError(message) from error
    except (grpc.FutureTimeoutError, grpc.RpcError) as error:
        raise UserError(_server_message(error, pipeline.options)) from error
    if bucket is not None:
        copies.download_files(
            unfinished, corpus.folder, include=lambda name: not name.endswith(SHARD_SUFFIX)
        )
    for split, state in corpus.states.items():
        _merge_states(corpus.folder, split, state)
    if bucket is not None:
        _rename_shards(bucket, corpus.states)


class _Read(beam.DoFn):
    """Read the documents of a source and choose the split of each."""

    def __init__(self, read: Callable[[Source], Iterator[Document]]):
        self._read = read

    def process(
        self, work: tuple[Stream, int, Source]
    ) -> Iterator[tuple[str, DocumentId, Document]]:
        stream, number, source = work
        for count, document in enumerate(self._read(source)):
            yield stream.choose(document.text.encode()), (number, count), document


class _Encode(beam.DoFn):
    """Encode a document as records."""

    def __init__(self, arguments: tuple[str, bool]):
        self._arguments = arguments

    def setup(self) -> None:
        self._encode = DocumentEncoder(*self._arguments)

    def process(self, work: tuple[str, DocumentId, Document]) -> Iterator[EncodedDocument]:
        split, id, (text, replaced) = work
        yield EncodedDocument(split, id, len(text), replaced, self._encode([text]))


def _size(document: EncodedDocument) -> tuple[tuple[str, int], tuple[int, int, int, int]]:
    """Return ((split, source), row of `_SIZES`) of a document."""
    source, number = document.id
    size = sum(map(len, document.encoded.records))
    return (document.split, source), (source, number, document.characters, size)


def _to_array(
    sizes_of_source: tuple[tuple[str, int], Iterable[tuple[int, ...]]],
) -> tuple[str, np.ndarray]:
    (split, _), rows = sizes_of_source
    return split, np.array(sorted(rows), _SIZES)


def _find_shard_starts(
    sizes_of_split: tuple[str, Iterable[np.ndarray]], full_bytes: int
) -> tuple[str, list[DocumentId]]:
    """Find the first document of every shard but the first, as `prepare` on one machine does.

    A shard may end only where a block ends, see `reading.BLOCK_CHARACTERS`.
    """
    split, arrays = sizes_of_split
    starts, characters, size, is_full = [], 0, 0, False
    for array in sorted(arrays, key=lambda array: array["source"][0]):
        for source, document, more_characters, more_bytes in array.tolist():
            if is_full:
                starts.append((source, document))
                size, is_full = 0, False
            characters, size = characters + more_characters, size + more_bytes
            if characters >= reading.BLOCK_CHARACTERS:
                characters, is_full = 0, size >= full_bytes
    return split, starts


def _with_shard(
    document: EncodedDocument, starts: Mapping[str, list[DocumentId]]
) -> tuple[tuple[str, int], EncodedDocument]:
    """Key a document by its split and the index of its shard."""
    return (document.split, bisect.bisect_right(starts[document.split], document.id)), document


class _Write(beam.DoFn):
    """Write a shard with `SplitWriter`, and its state as JSON next to it."""

    def __init__(self, folder: str, tokenizer_path: str):
        self._folder, self._tokenizer_path = folder, tokenizer_path

    def setup(self) -> None:
        self._tokenizer = tokenizers.load(self._tokenizer_path)

    def process(self, shard: tuple[tuple[str, int], Iterable[EncodedDocument]]) -> None:
        (split, number), documents = shard
        with disk_errors(self._folder), copies.upload_folder(self._folder) as folder:
            self._write(folder, split, number, documents)

    def _write(
        self, folder: pathlib.Path, split: str, number: int, documents: Iterable[EncodedDocument]
    ) -> None:
        state = SplitState(START, shards=[{}] * number)
        # A runner may process the same shard twice at the same time.
        part = f"{split}-{number:05d}-{uuid.uuid4().hex}.part"
        writer = SplitWriter(folder, split, state, 0, self._tokenizer, part=part)
        for document in sorted(documents, key=lambda document: document.id):
            reason = "no_tokens" if document.characters else "empty"
            dropped = Counter({reason: 1 - document.encoded.documents})
            writer.add(document.encoded, dropped=dropped, replaced=document.replaced)
        writer.end_shard(START)
        state.shards = state.shards[number:]
        path = _state_path(folder, split, number)
        write_atomic(path, json.dumps(state.to_json()).encode())


def _state_path(folder: pathlib.Path, split: str, number: int) -> pathlib.Path:
    return folder / f"{shard_name(split, number)}.json"


def _merge_states(folder: pathlib.Path, split: str, state: SplitState) -> None:
    """Add the states of all shards of a split to `state`."""
    number = 0
    while (path := _state_path(folder, split, number)).exists():
        shard = SplitState.from_json(json.loads(path.read_bytes()))
        state.shards += shard.shards
        state.totals += shard.totals
        state.dropped += shard.dropped
        number += 1
    state.position = Position(1, 0, "")


def _rename_shards(bucket: Any, states: Mapping[str, SplitState]) -> None:
    """Move the shards of a bucket to their final names, and remove the temporary folder."""
    for split, state in states.items():
        count = len(state.shards)
        for number in range(count):
            source = bucket / UNFINISHED / shard_name(split, number)
            storage.move(source, bucket / final_shard_name(split, number, count))
    storage.remove_folder(bucket / UNFINISHED)


def _server_message(error: Exception, options: PipelineOptions) -> str:
    server = f"Beam's job server {options.view_as(PortableOptions).job_endpoint}"
    if isinstance(error, grpc.FutureTimeoutError):
        return f"{server} does not reply; check --job_endpoint and --job_server_timeout"
    return f"{server} failed: {error.details()}; see its log and those of its workers"


def _worker_message(error: Exception) -> str | None:
    """The message of a `UserError` in a worker, without Beam's text; None for other errors."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UserError):
            return str(cause).partition(" [while running")[0]
        cause = cause.__cause__ or cause.__context__
    mark = f"{UserError.__module__}.{UserError.__qualname__}: "
    if mark not in str(error):
        return None
    return str(error).rpartition(mark)[2].splitlines()[0].partition(" [while running")[0]
