"""Prepare a corpus: read text, encode it in worker processes, write shards; resumable.

    reading.read_blocks -> filtering.filter_blocks -> encoding.DocumentEncoder -> shards.SplitWriter

Shards are a function of the inputs and options only: the number of workers and interruptions do not
change them.
"""

import dataclasses
import functools
import importlib
import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import bertjax
from bertjax.corpus import text as corpus_text
from bertjax.corpus.documents import PAIR_FORMAT, Document
from bertjax.corpus.encoding import EncodedDocuments
from bertjax.corpus.filtering import ENCODE, DocumentStages, filter_blocks
from bertjax.corpus.filters import parse_filters
from bertjax.corpus.format import TEXT_FIELD
from bertjax.corpus.reading import Block, Stream, read_blocks
from bertjax.corpus.shards import SplitWriter, disk_errors
from bertjax.corpus.sources import Source, find_overlap, find_sources
from bertjax.corpus.workers import WorkerPool
from bertjax.corpus.writer import CorpusWriter
from bertjax.errors import UserError
from bertjax.interfaces import Tokenizer
from bertjax.io import copies, storage
from bertjax.tokenizers import tokenizer as tokenizers


@dataclasses.dataclass
class Progress:
    """The progress of `prepare`.

    Attributes:
      documents: Number of documents that this call has encoded.
      characters: Number of their characters.
      tokens: Number of their tokens.
      earlier_documents: Number of documents that an earlier, interrupted call had finished.
      fraction: Fraction of the input that has been read; None if its size is unknown.
      seconds: Time since the start of this call.
    """

    documents: int = 0
    characters: int = 0
    tokens: int = 0
    earlier_documents: int = 0
    fraction: float | None = None
    seconds: float = 0.0


def prepare(
    inputs: Sequence[str],
    tokenizer_path: str | os.PathLike,
    out: str | os.PathLike,
    *,
    validation_inputs: Sequence[str] = (),
    validation_fraction: float = 0.0,
    format: str = "auto",
    errors: str = "strict",
    tfds_data_dir: str | None = None,
    text_field: str = "",
    filters: Sequence[str] = (),
    shard_size: float = 64,
    workers: int | None = None,
    beam: Sequence[str] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> dict[str, Any]:
    """Prepare a corpus, or resume an interrupted call with the same arguments.

    >>> sorted(bertjax.prepare(["text/*.txt"], "runs/bert/tokenizer", "corpus")["splits"])
    ['train']

    Args:
      inputs: Globs, `python-docs`, `tfds:NAME:SPLIT`, for the split `train`.
      tokenizer_path: A tokenizer's folder or file; it is copied into the corpus.
      out: The corpus's folder, on a disk or in a bucket.
      validation_inputs: Inputs for the split `validation`.
      validation_fraction: Instead of `validation_inputs`, the fraction of documents of `inputs` for
        the split `validation`. They are selected by a hash of their text: the same documents in
        every run, and equal documents in the same split.
      format: Format of the files; see `text.read_documents`.
      errors: "strict" or "replace", for invalid UTF-8; see `text.read_documents`.
      tfds_data_dir: Folder of prepared TensorFlow datasets; see `text.read_documents`.
      text_field: Field or column with the text; see `text.read_documents`.
      filters: Documents to drop, such as "gopher", "min_words=20"; see `filters.parse_filters`.
      shard_size: Size of a shard in MiB; resuming starts after the last finished shard.
      workers: Number of worker processes; None for one per core.
      beam: Options of an Apache Beam pipeline that prepares the corpus instead, on machines that
        all have access to the inputs, the tokenizer and `out`, on a shared disk or in a bucket. The
        corpus is the same, byte for byte.
      progress: Called after every block.

    Returns:
      The manifest. If the corpus is complete already, nothing else is done.

    Raises:
      UserError: An argument, an input or `out` cannot be used. Finished shards are kept.
    """
    _check_arguments(validation_inputs, validation_fraction, shard_size, workers, errors)
    bounds = _parse_filters(filters, beam)
    tokenizer = tokenizers.load(str(tokenizer_path))
    recipe = {
        "inputs": list(inputs),
        "validation_inputs": list(validation_inputs),
        "validation_fraction": validation_fraction,
        "format": format,
        "errors": errors,
        "tfds_data_dir": tfds_data_dir,
        # Manifests of older versions have no such field, which is read as None.
        "text_field": None if text_field in ("", TEXT_FIELD) else text_field,
        "filters": bounds or None,
        "shard_size": shard_size,
        "tokenizer": tokenizer.fingerprint,
        "version": bertjax.__version__,
    }
    streams = _streams(inputs, validation_inputs, validation_fraction)
    sources = [source for stream in streams for source in stream.sources]
    corpus_text.check_sources(sources, format=format, text_field=text_field)
    options: dict[str, Any] = {"format": format, "errors": errors, "tfds_data_dir": tfds_data_dir}
    read = functools.partial(corpus_text.read_source, text_field=text_field, **options)
    work = _Work(streams, read, bounds, (str(tokenizer_path), format == PAIR_FORMAT), shard_size)
    upload = copies.atomic_upload(out, "manifest.json")
    with upload as folder, CorpusWriter(folder, recipe, streams) as corpus:
        if corpus.manifest is None:
            if beam is not None:
                _write_with_beam(work, corpus, beam, out)
            else:
                _write_locally(work, corpus, tokenizer, workers, progress)
            return _finish(inputs, bounds, corpus, tokenizer)
        return corpus.manifest


class _Work(NamedTuple):
    """The inputs of a corpus, and the options of reading and encoding them.

    Attributes:
      streams: The inputs and their splits.
      read: Reads the documents of a source.
      bounds: The filters.
      encoder_arguments: The arguments of `DocumentEncoder`.
      shard_size: Size of a shard in MiB.
    """

    streams: Sequence[Stream]
    read: Callable[[Source], Iterator[Document]]
    bounds: Mapping[str, float]
    encoder_arguments: tuple[str, bool]
    shard_size: float


def _parse_filters(filters: Sequence[str], beam: Sequence[str] | None) -> dict[str, float]:
    if filters and beam is not None:
        raise UserError("--filter requires --runner local: leave one of them out")
    return parse_filters(filters)


def _finish(
    inputs: Sequence[str], bounds: Mapping[str, float], corpus: CorpusWriter, tokenizer: Tokenizer
) -> dict[str, Any]:
    """Complete a corpus that has text, and return its manifest."""
    train = corpus.states["train"]
    if train.totals["tokens"]:
        with disk_errors(corpus.path):
            return corpus.finish(tokenizer)
    dropped = {name: train.dropped[name] for name in bounds if train.dropped[name]}
    if not dropped:
        raise UserError(corpus_text.no_text_message(inputs))
    counts = ", ".join(f"{count:,} by {name}" for name, count in dropped.items())
    raise UserError(
        f"no text is left in {', '.join(inputs)}: filters drop {counts}; change --filter"
    )


def _write_with_beam(
    work: _Work, corpus: CorpusWriter, options: Sequence[str], out: str | os.PathLike
) -> None:
    try:
        beam = importlib.import_module("bertjax.corpus.beam")
    except ImportError as error:
        raise UserError(
            f"--runner beam requires Apache Beam ({error}); pip install 'bertjax[beam]'"
        ) from None
    bucket = storage.to_path(out) if storage.is_remote(out) else None
    beam.write_shards(
        corpus, work.streams, work.read, work.encoder_arguments, work.shard_size, options, bucket
    )


def _write_locally(
    work: _Work,
    corpus: CorpusWriter,
    tokenizer: Tokenizer,
    workers: int | None,
    progress: Callable[[Progress], None] | None,
) -> None:
    """Filter and encode the documents of all streams in processes of this machine."""
    report = _Reporter(corpus, work.streams, progress)
    writers = {
        split: SplitWriter(corpus.folder, split, state, work.shard_size, tokenizer)
        for split, state in corpus.states.items()
    }
    arguments = work.bounds, work.encoder_arguments
    with WorkerPool(DocumentStages, arguments, workers) as pool:
        blocks = _read_blocks(work, corpus, pool)
        for block, encoded in pool.imap((block, (ENCODE, block.texts)) for block in blocks):
            writer = writers[block.split]
            dropped = block.dropped + Counter(no_tokens=len(block.texts) - encoded.documents)
            with disk_errors(corpus.path):
                writer.add(encoded, dropped=dropped, replaced=block.replaced, keys=block.keys)
                if block.is_last or writer.is_full:
                    writer.end_shard(block.position)
                    corpus.save()
            report(block, encoded)


def _read_blocks(work: _Work, corpus: CorpusWriter, pool: WorkerPool) -> Iterator[Block]:
    """Yield the filtered blocks of all streams, one stream after the other."""
    blocks = itertools.chain.from_iterable(
        read_blocks(
            stream, {split: corpus.states[split].position for split in stream.splits}, work.read
        )
        for stream in work.streams
    )
    if not work.bounds:
        return blocks
    return filter_blocks(blocks, pool, work.bounds, corpus.read_keys())


class _Reporter:
    """Sum up the counts of blocks and pass them to a callback."""

    def __init__(
        self,
        corpus: CorpusWriter,
        streams: Sequence[Stream],
        progress: Callable[[Progress], None] | None,
    ):
        earlier = sum(state.totals["documents"] for state in corpus.states.values())
        self._progress = Progress(earlier_documents=earlier)
        self._bytes = 0
        self._bytes_before: dict[str, int] = {}
        for stream in streams:
            self._bytes_before |= dict.fromkeys(stream.splits, self._bytes)
            self._bytes += sum(source.bytes for source in stream.sources)
        self._callback = progress or (lambda _: None)
        self._started = time.monotonic()

    def __call__(self, block: Block, encoded: EncodedDocuments) -> None:
        bytes_read = self._bytes_before[block.split] + block.input_bytes
        self._progress = dataclasses.replace(
            self._progress,
            documents=self._progress.documents + encoded.documents,
            characters=self._progress.characters + encoded.characters,
            tokens=self._progress.tokens + int(encoded.index["tokens"].sum()),
            fraction=bytes_read / self._bytes if self._bytes else None,
            seconds=time.monotonic() - self._started,
        )
        self._callback(self._progress)


def _streams(
    inputs: Sequence[str], validation_inputs: Sequence[str], validation_fraction: float
) -> list[Stream]:
    sources = find_sources(inputs)
    if validation_fraction:
        return [Stream(sources, ("train", "validation"), validation_fraction)]
    if not validation_inputs:
        return [Stream(sources, ("train",))]
    held_out = find_sources(validation_inputs)
    if shared := find_overlap(sources, held_out):
        raise UserError(
            f"{shared[0]} is both an input and a validation input ({len(shared)} in all), so "
            "held-out text would be trained on; remove it from one of them"
        )
    return [Stream(sources, ("train",)), Stream(held_out, ("validation",))]


def _check_arguments(
    validation_inputs: Sequence[str],
    validation_fraction: float,
    shard_size: float,
    workers: int | None,
    errors: str,
) -> None:
    if not 0 <= validation_fraction < 1:
        raise UserError(
            f"validation_fraction: got {validation_fraction}, expected a number >= 0 and < 1"
        )
    if validation_inputs and validation_fraction:
        raise UserError("got both validation_inputs and validation_fraction, expected one of them")
    if shard_size <= 0:
        raise UserError(f"shard_size: got {shard_size}, expected a number > 0, in MiB; default 64")
    if workers is not None and workers < 1:
        raise UserError(f"workers: got {workers}, expected an integer >= 1; default: one per core")
    if errors not in ("strict", "replace"):
        raise UserError(f"errors: got {errors!r}, expected 'strict' or 'replace'")
