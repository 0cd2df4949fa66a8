"""Prepare a corpus: read in order, encode in child processes, write in order, resume.

    reading.blocks -> workers.Workers(DocumentEncoder) -> shards.SplitWriter -> manifest.json

What a shard holds depends on the input alone: not on how many workers there are, nor on how often
the work was stopped.
"""

import dataclasses
import functools
import importlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import bertjax
from bertjax.corpus import text as corpus_text
from bertjax.corpus.encoding import DocumentEncoder, Packed
from bertjax.corpus.reading import Block, Stream, blocks
from bertjax.corpus.shards import SplitWriter, disk_errors
from bertjax.corpus.sources import Source, find_sources, overlap
from bertjax.corpus.text import Document
from bertjax.corpus.workers import Workers
from bertjax.corpus.writer import CorpusWriter
from bertjax.errors import UserError
from bertjax.io import copies, storage
from bertjax.tokenizers import tokenizer as tokenizers


@dataclasses.dataclass
class Progress:
    """How far a `prepare` has come, for whoever shows it.

    Attributes:
      documents: How many this call has packed,
      characters: how many those have,
      tokens: and how many tokens.
      earlier_documents: How many an earlier call had finished.
      fraction: How much of the input is behind; None where sizes are not known.
      seconds: Since the first document was asked for.
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
    shard_size: float = 64,
    workers: int | None = None,
    beam: Sequence[str] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> dict[str, Any]:
    """Makes a corpus, or finishes one that an earlier call with the same arguments began.

    Args:
      inputs: Globs, `python-docs`, `tfds:NAME:SPLIT`; they become the split `train`.
      tokenizer_path: A tokenizer's folder or file; a copy goes into the corpus.
      out: The corpus's folder.
      validation_inputs: What becomes the split `validation`; or
      validation_fraction: how much of `inputs` does, chosen by a digest of a document's text: the
        same documents in every run, and equal documents on the same side.
      format: How files are laid out, one of `text.formats()`.
      errors: `strict` or `replace`, for what is not UTF-8.
      tfds_data_dir: Where datasets of `tfds:` lie prepared.
      text_field: The field of JSON lines or feature of a dataset with the text; "" is `text`.
      shard_size: Of a shard, in MiB; after a stop, unfinished shards are written again.
      workers: Child processes; None for one a core.
      beam: Options of an Apache Beam pipeline that does it instead, on machines that all see the
        inputs, the tokenizer and `out`, on a disk that they share or in a bucket: the corpus is
        the same, byte for byte.
      progress: Called after every block.

    Returns:
      The manifest; at once, if the corpus is finished already.

    Raises:
      UserError: for what the user can fix. Finished shards stay, and the next call continues.
    """
    _check(validation_inputs, validation_fraction, shard_size, workers, errors)
    tokenizer = tokenizers.load(str(tokenizer_path))
    recipe = {
        "inputs": list(inputs),
        "validation_inputs": list(validation_inputs),
        "validation_fraction": validation_fraction,
        "format": format,
        "errors": errors,
        "tfds_data_dir": tfds_data_dir,
        # None is what a manifest without the field has.
        "text_field": None if text_field in ("", corpus_text.TEXT_FIELD) else text_field,
        "shard_size": shard_size,
        "tokenizer": tokenizer.fingerprint,
        "version": bertjax.__version__,
    }
    streams = _streams(inputs, validation_inputs, validation_fraction)
    sources = [source for stream in streams for source in stream.sources]
    corpus_text.check(sources, format=format, text_field=text_field)
    options = {"format": format, "errors": errors, "tfds_data_dir": tfds_data_dir}
    read = functools.partial(corpus_text.read, text_field=text_field, **options)
    packing = str(tokenizer_path), format == corpus_text.FORMAT
    delivered = copies.atomic_upload(out, "manifest.json")
    with delivered as folder, CorpusWriter(folder, recipe, streams) as corpus:
        if corpus.manifest is None:
            if beam is not None:
                bucket = storage.to_path(out) if storage.is_remote(out) else None
                _beam().fill(corpus, streams, read, packing, shard_size, beam, bucket)
            else:
                with Workers(DocumentEncoder, packing, workers) as pool:
                    _write_all(streams, read, pool, corpus, tokenizer, shard_size, progress)
            if not corpus.states["train"].totals["tokens"]:
                raise UserError(corpus_text.no_text(inputs))
            with disk_errors(corpus.path):
                corpus.finish(tokenizer)
        return corpus.manifest


def _beam() -> ModuleType:
    try:
        return importlib.import_module("bertjax.corpus.beam")
    except ImportError as error:
        raise UserError(
            f"Apache Beam is not installed ({error}): pip install 'bertjax[beam]'"
        ) from None


def _write_all(
    streams: Sequence[Stream],
    read: Callable[[Source], Iterator[Document]],
    pool: Workers,
    corpus: CorpusWriter,
    tokenizer: Any,
    shard_size: float,
    progress: Callable[[Progress], None] | None,
) -> None:
    """Writes the documents of all streams to disk, one stream after the other."""
    report = _Reporter(corpus, streams, progress)
    writers = {
        split: SplitWriter(corpus.folder, split, state, shard_size, tokenizer)
        for split, state in corpus.states.items()
    }
    for stream in streams:
        _write(stream, read, pool, writers, corpus, report)


def _write(
    stream: Stream,
    read: Callable[[Source], Iterator[Document]],
    pool: Workers,
    writers: Mapping[str, SplitWriter],
    corpus: CorpusWriter,
    report: "_Reporter",
) -> None:
    """Brings one stream of documents to disk."""
    positions = {split: corpus.states[split].position for split in stream.splits}
    found = blocks(stream, positions, read)
    for block, packed in pool.ordered((block, block.texts) for block in found):
        writer = writers[block.split]
        dropped = block.dropped + Counter(no_tokens=len(block.texts) - packed.documents)
        with disk_errors(corpus.path):
            writer.add(packed, dropped=dropped, replaced=block.replaced)
            if block.is_last or writer.is_full:
                writer.end_shard(block.position)
                corpus.save()
        report(block, packed)


class _Reporter:
    """Adds up blocks and tells whoever requires to know."""

    def __init__(
        self,
        corpus: CorpusWriter,
        streams: Sequence[Stream],
        progress: Callable[[Progress], None] | None,
    ):
        earlier = sum(state.totals["documents"] for state in corpus.states.values())
        self._progress = Progress(earlier_documents=earlier)
        self._bytes, self._bytes_before = 0, {}
        for stream in streams:
            self._bytes_before |= dict.fromkeys(stream.splits, self._bytes)
            self._bytes += sum(source.bytes for source in stream.sources)
        self._tell = progress or (lambda _: None)
        self._started = time.monotonic()

    def __call__(self, block: Block, packed: Packed) -> None:
        behind = self._bytes_before[block.split] + block.input_bytes
        self._progress = dataclasses.replace(
            self._progress,
            documents=self._progress.documents + packed.documents,
            characters=self._progress.characters + packed.characters,
            tokens=self._progress.tokens + int(packed.index["tokens"].sum()),
            fraction=behind / self._bytes if self._bytes else None,
            seconds=time.monotonic() - self._started,
        )
        self._tell(self._progress)


def _streams(
    inputs: Sequence[str], validation_inputs: Sequence[str], validation_fraction: float
) -> list[Stream]:
    sources = find_sources(inputs)
    if validation_fraction:
        return [Stream(sources, ("train", "validation"), validation_fraction)]
    if not validation_inputs:
        return [Stream(sources, ("train",))]
    held_out = find_sources(validation_inputs)
    if shared := overlap(sources, held_out):
        raise UserError(
            f"{shared[0]} is an input and a validation input ({len(shared)} in all): held-out text "
            "would be trained on; leave it out of one of them"
        )
    return [Stream(sources, ("train",)), Stream(held_out, ("validation",))]


def _check(
    validation_inputs: Sequence[str],
    validation_fraction: float,
    shard_size: float,
    workers: int | None,
    errors: str,
) -> None:
    if not 0 <= validation_fraction < 1:
        raise UserError(
            f"validation_fraction={validation_fraction} is no fraction; give one from 0 to below 1"
        )
    if validation_inputs and validation_fraction:
        raise UserError("validation_inputs and validation_fraction exclude each other; give one")
    if shard_size <= 0:
        raise UserError(f"shard_size={shard_size} is not positive; the default is 64")
    if workers is not None and workers < 1:
        raise UserError(f"workers={workers} is not positive; leave it out to use every core")
    if errors not in ("strict", "replace"):
        raise UserError(f"errors={errors!r} is neither 'strict' nor 'replace'")
