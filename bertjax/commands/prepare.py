"""Tokenize text into a corpus for training; resumes what was interrupted."""

import argparse
import contextlib
import pathlib
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from bertjax.constraints import PositiveFloat, PositiveInt, ShareBelowOne, checked
from bertjax.errors import UserError
from bertjax.io import storage
from bertjax.validation.unused_options import Unread, check_flags

if TYPE_CHECKING:
    from bertjax.corpus.prepare import Progress

_EXAMPLES = r"""\
inputs:
  'text/*.txt'           plain text, a blank line between documents
  'wiki/*.gz'            WikiExtractor's output; .gz .bz2 .xz .zst are read as they are
  'data/*.jsonl.zst'     JSON lines, each with a "text", or with the field that --text_field names
  tfds:lm1b:train        a dataset that TensorFlow Datasets prepared as array_record
  'pairs/*.tsv'          with --format source-target: a source, a tab and its target, or JSON lines
                         with "source" and "target"; likewise a dataset of TFDS
  python-docs            Python's own documentation: 13 MB of English on every machine
  Tables (CSV, TSV, Parquet, Arrow), pages (HTML, PDF, WARC) and archives are refused with a command
  that converts them; --format text reads those that are text, such as CSV, as prose.

examples:
  bertjax prepare --input 'text/*.txt' --tokenizer vocab/ --out corpus/
  bertjax prepare --input 'wiki/*.gz' --tokenizer vocab/ --out corpus/ --validation_fraction 0.005
  bertjax prepare --input lines.txt --format lines --tokenizer vocab/ --out corpus/ --workers 4
  bertjax prepare --input '/shared/wiki/*.gz' --tokenizer /shared/vocab --out /shared/corpus \
      --runner beam -- --runner=FlinkRunner --flink_master=cluster:8081
  bertjax prepare --input 'gs://texts/*.gz' --tokenizer gs://vocab --out gs://corpora/wiki \
      --runner beam -- --runner=DataflowRunner --project=PROJECT --region=REGION

With --runner beam (pip install 'bertjax[beam]') many machines do it, which all see the inputs, the
tokenizer and --out under the same paths, on a disk that they share or in a bucket; the corpus is
the same, byte for byte. Without options of its own Beam runs it on this machine. Interrupted, it
begins again.

Without Beam, interrupt it whenever you like: the same command continues after the last finished
shard, and the corpus is the same, byte for byte, for any number of interruptions and workers.
"""

TEXT_FIELD_HELP = "field of JSON lines, or feature of tfds:, that holds the text (default: text)"

TFDS_DATA_DIR = Unread(
    ("tfds_data_dir",),
    "input",
    lambda inputs: not any(name.startswith("tfds:") for name in inputs),
    "tfds:NAME:SPLIT among them, since files have their own paths",
    "leave it out",
)


def main(argv: list[str]) -> None:
    """Runs `bertjax prepare`."""
    from bertjax.overrides import split_at_dashes

    own, of_beam = split_at_dashes(argv)
    parser = _parser()
    options = parser.parse_args(own)
    inputs = {"input": [*options.input, *options.validation_input]}
    check_flags([TFDS_DATA_DIR], vars(options) | inputs, parser.get_default)
    if of_beam and options.runner != "beam":
        raise UserError(f"words behind -- are Beam's: {of_beam[0]!r} requires --runner beam")
    if options.runner == "beam" and options.workers is not None:
        raise UserError("--workers is of --runner local: Beam's own options stand behind --")
    from bertjax.corpus.prepare import prepare
    from bertjax.corpus.sources import repeated

    for inputs in filter(None, (options.input, options.validation_input)):
        if note := repeated(inputs):
            print(note, file=sys.stderr)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        with progress_display() as progress:
            manifest = prepare(
                options.input,
                options.tokenizer,
                options.out,
                validation_inputs=options.validation_input,
                validation_fraction=options.validation_fraction,
                format=options.format,
                errors=options.errors,
                tfds_data_dir=options.tfds_data_dir,
                text_field=options.text_field,
                shard_size=options.shard_size,
                workers=options.workers,
                beam=of_beam if options.runner == "beam" else None,
                progress=progress,
            )
    except (KeyboardInterrupt, SystemExit):
        command = shlex.join(["bertjax", "prepare", *argv])
        print(f"stopped; {_onward(options)}: {command}", file=sys.stderr)
        raise
    print(summary(options.out, manifest))


def _onward(options: argparse.Namespace) -> str:
    """What the same command does after an interruption."""
    if options.runner == "beam":
        return "the same command starts again"
    # A corpus without a finished shard is removed; a bucket's shards are finished on this machine.
    if not storage.is_remote(options.out) and not pathlib.Path(options.out).exists():
        return "no shard is finished yet, the same command starts again"
    return f"the same command resumes after the last finished shard of {options.out}"


def summary(out: str, manifest: dict[str, Any]) -> str:
    """What the user requires to know of a corpus that was just made."""
    lines = [
        f"{name}: {split['documents']:,} documents, {split['sentences']:,} sentences, "
        f"{split['tokens']:,} tokens in {len(split['shards'])} shards"
        for name, split in manifest["splits"].items()
    ]
    empty = [name for name, split in manifest["splits"].items() if not split["tokens"]]
    lines += [f"warning: the {name} split is empty; give it more documents" for name in empty]
    if manifest["dropped"]:
        reasons = (f"{count:,} {reason}" for reason, count in sorted(manifest["dropped"].items()))
        lines.append(f"dropped documents: {', '.join(reasons)}")
    if manifest["replaced"]:
        lines.append(f"replaced by U+FFFD, not being UTF-8: {manifest['replaced']:,}")
    return "\n".join([*lines, f"the corpus is {out}, fingerprint {manifest['fingerprint'][:16]}"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bertjax prepare",
        description="Finds documents and sentences in text, tokenizes them on all cores and "
        "stores them once, for every training format and length.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--input", nargs="+", required=True, metavar="GLOB", help="what to read, see below")
    add(
        "--tokenizer",
        required=True,
        metavar="DIR",
        help="a folder of `bertjax tokenizer`, or released files: vocab.txt, tokenizer.json, ...",
    )
    add("--out", required=True, metavar="DIR", help="the corpus's folder")
    add(
        "--workers",
        action=checked(PositiveInt),
        metavar="N",
        help="processes (default: one for each core)",
    )
    add(
        "--format",
        default="auto",
        help="how files are laid out: text, lines, jsonl, wikiextractor, source-target (default: "
        "auto, looks)",
    )
    add("--text_field", default="", metavar="NAME", help=TEXT_FIELD_HELP)
    add(
        "--errors",
        default="strict",
        choices=["strict", "replace"],
        help="for what is not UTF-8: refuse, or put U+FFFD and count (default: strict)",
    )
    add(
        "--validation_input",
        nargs="+",
        default=[],
        metavar="GLOB",
        help="what becomes the validation split",
    )
    add(
        "--validation_fraction",
        action=checked(ShareBelowOne),
        default=0.0,
        metavar="SHARE",
        help="or which share of the input does, chosen by each document's text (default: 0)",
    )
    add(
        "--shard_size",
        action=checked(PositiveFloat),
        default=64,
        metavar="MB",
        help="size of a shard, and of what is done again after an interruption (default: 64)",
    )
    add(
        "--runner",
        default="local",
        choices=["local", "beam"],
        help="the cores of this machine, or an Apache Beam pipeline, whose options stand behind --",
    )
    add("--tfds_data_dir", metavar="DIR", help="where datasets of tfds: lie prepared")
    return parser


def _terminate(*_: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)


@contextlib.contextmanager
def progress_display() -> Iterator[Callable[["Progress"], None]]:
    """Shows how far the preparation has come."""
    from bertjax.runtime import progress as displays

    with displays.progress_display() as display:
        yield lambda progress: display.update(progress.fraction, _rates(progress))


def _rates(progress: "Progress") -> str:
    seconds = max(progress.seconds, 1e-3)
    earlier = f" (+ {progress.earlier_documents:,} earlier)" if progress.earlier_documents else ""
    return (
        f"{progress.documents:,} documents{earlier}, "
        f"{progress.characters / 1e6 / seconds:.1f} MB/s, "
        f"{progress.tokens / seconds:,.0f} tokens/s"
    )
