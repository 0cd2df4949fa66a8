"""Tokenize text into a corpus for pretraining; rerun the command to resume."""

import contextlib
import pathlib
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from bertjax.commands import _flags
from bertjax.constraints import PositiveFloat, PositiveInt, ShareBelowOne, constraint_action
from bertjax.errors import UserError
from bertjax.io import storage
from bertjax.validation.unused_options import check_flags

if TYPE_CHECKING:
    import argparse

    from bertjax.corpus.prepare import Progress

GROUP = "Data"

_EXAMPLES = """\
inputs:
  'text/*.txt'           plain text, documents separated by blank lines
  'wiki/*.gz'            output of WikiExtractor; .gz .bz2 .xz .zst are decompressed
  'data/*.jsonl.zst'     JSON lines with a "text", or the field named by --text_field
  'data/*.parquet'       a table with a column "text": CSV, TSV, Parquet, Arrow, MDS
  saved/train            a folder that datasets.save_to_disk or MDSWriter wrote
  'crawl/*.wet.gz'       plain text of web archives (WARC, WET)
  'hf://datasets/OWNER/NAME/*.parquet'    files on the Hugging Face Hub; also gs:// and s3://
  tfds:lm1b:train        a dataset of TensorFlow Datasets, prepared as array_record
  'pairs/*.tsv'          with --format source-target: source, tab, target per line; or JSON lines
                         or a TFDS dataset with "source" and "target"
  python-docs            Python's documentation, 13 MB of English, without a download
  For pages (HTML, PDF) and archives the error message has a command that converts them;
  --format text reads text such as CSV as prose.

filters:
  min_characters=200 max_characters=N min_words=N max_words=N
                         length of a document
  min_letters=0.7 ...    shares of letters, of repeated lines, paragraphs and n-grams ...: the names
                         are those of bertjax.corpus.filters.RULES
  gopher                 all rules of Gopher (Rae et al. 2021, appendix A.1.1) that do not depend on
                         the language, for languages with spaces between words
  duplicates             the text of an earlier document
  near_duplicates=0.8    similar to an earlier document, by the Jaccard index of n-grams of 5 words
                         (pip install 'bertjax[dedup]')

examples:
  bertjax prepare --input 'crawl/*.wet.gz' --tokenizer vocab/ --output corpus/ \\
      --filter gopher duplicates min_characters=500
  bertjax prepare --input 'text/*.txt' --tokenizer vocab/ --output corpus/
  bertjax prepare --input 'wiki/*.gz' --tokenizer vocab/ --output corpus/ \\
      --validation_fraction 0.005
  bertjax prepare --input lines.txt --format lines --tokenizer vocab/ --output corpus/ --workers 4
  bertjax prepare --input '/shared/wiki/*.gz' --tokenizer /shared/vocab \\
      --output /shared/corpus --runner beam -- --runner=FlinkRunner --flink_master=cluster:8081
  bertjax prepare --input 'gs://texts/*.gz' --tokenizer gs://vocab --output gs://corpora/wiki \\
      --runner beam -- --runner=DataflowRunner --project=PROJECT --region=REGION

Interrupt it at any time: the same command resumes after the last finished shard. The corpus is
byte-identical for any number of interruptions and workers.

--runner beam (pip install 'bertjax[beam]') runs an Apache Beam pipeline on many machines. The
inputs, the tokenizer and --output must have the same paths on all of them: on a shared disk or in a
bucket. Options after -- are Beam's; without any it runs on this machine. The corpus is
byte-identical; an interrupted pipeline starts from the beginning.
"""


def main(argv: list[str]) -> None:
    """Prepares a corpus and prints its size; on an interrupt prints the command that resumes."""
    from bertjax.overrides import split_at_dashes

    own, beam_options = split_at_dashes(argv)
    options_parser = parser()
    options = options_parser.parse_args(own)
    inputs = {"input": [*options.input, *options.validation_input]}
    check_flags([_flags.TFDS_DATA_DIR], vars(options) | inputs, options_parser.get_default)
    if beam_options and options.runner != "beam":
        raise UserError(
            f"options after -- are Beam's: got {beam_options[0]!r} with --runner local; set "
            "--runner beam"
        )
    if options.runner == "beam" and options.workers is not None:
        raise UserError("--workers requires --runner local: pass Beam's own options after --")
    from bertjax.corpus.prepare import prepare
    from bertjax.corpus.sources import describe_repeated

    for inputs in filter(None, (options.input, options.validation_input)):
        if note := describe_repeated(inputs):
            print(note, file=sys.stderr)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        with progress_display() as progress:
            manifest = prepare(
                options.input,
                options.tokenizer,
                options.output,
                validation_inputs=options.validation_input,
                validation_fraction=options.validation_fraction,
                format=options.format,
                errors=options.errors,
                tfds_data_dir=options.tfds_data_dir,
                text_field=options.text_field,
                filters=options.filter,
                shard_size=options.shard_size,
                workers=options.workers,
                beam=beam_options if options.runner == "beam" else None,
                progress=progress,
            )
    except (KeyboardInterrupt, SystemExit):
        command = shlex.join(["bertjax", "prepare", *argv])
        print(f"stopped; {_resume_note(options)}: {command}", file=sys.stderr)
        raise
    print(summary(options.output, manifest))


def _resume_note(options: "argparse.Namespace") -> str:
    """Returns the effect of running the same command again."""
    if options.runner == "beam":
        return "the same command starts from the beginning"
    # A corpus without a finished shard is removed; shards of a bucket are finished locally.
    if not storage.is_remote(options.output) and not pathlib.Path(options.output).exists():
        return "no shard is finished yet, the same command starts from the beginning"
    return f"the same command resumes after the last finished shard of {options.output}"


def summary(out: str, manifest: dict[str, Any]) -> str:
    """Returns a summary of a corpus: sizes of its splits, dropped documents, fingerprint.

    Args:
      out: The folder of the corpus.
      manifest: Its manifest.
    """
    lines = [
        f"{name}: {split['documents']:,} documents, {split['sentences']:,} sentences, "
        f"{split['tokens']:,} tokens in {len(split['shards'])} shards"
        for name, split in manifest["splits"].items()
    ]
    empty = [name for name, split in manifest["splits"].items() if not split["tokens"]]
    lines += [f"warning: the {name} split is empty; add more documents" for name in empty]
    if manifest["dropped"]:
        reasons = (f"{count:,} {reason}" for reason, count in sorted(manifest["dropped"].items()))
        lines.append(f"dropped documents: {', '.join(reasons)}")
    if manifest["replaced"]:
        lines.append(f"invalid UTF-8 replaced by U+FFFD: {manifest['replaced']:,}")
    return "\n".join([*lines, f"corpus: {out}, fingerprint {manifest['fingerprint'][:16]}"])


def parser() -> _flags.Parser:
    """Returns the parser of the command line."""
    parser = _flags.Parser(
        "bertjax prepare",
        "Tokenize text into a corpus for pretraining: split documents and sentences, tokenize\n"
        "on all cores, and store the tokens once for every example format and length.",
        _EXAMPLES,
        renamed={"--out": "--output"},
    )
    add = parser.add_argument
    _flags.add_texts(parser, "texts to read, see below")
    add(
        "--tokenizer",
        required=True,
        metavar="DIR",
        help="folder of `bertjax tokenizer train`, of a run or of a corpus; or released files: "
        "vocab.txt, tokenizer.json ...",
    )
    add("--output", required=True, metavar="DIR", help="folder of the corpus")
    add(
        "--workers",
        action=constraint_action(PositiveInt),
        metavar="N",
        help="number of processes (default: one per core)",
    )
    add(
        "--validation_input",
        nargs="+",
        default=[],
        metavar="GLOB",
        help="texts of the validation split (default: none)",
    )
    add(
        "--validation_fraction",
        action=constraint_action(ShareBelowOne),
        default=0.0,
        metavar="SHARE",
        help="fraction of the documents of --input that becomes the validation split, selected by "
        "a hash of the text",
    )
    add(
        "--filter",
        nargs="+",
        default=[],
        metavar="NAME=NUMBER",
        help="documents to drop, see below (default: none)",
    )
    add(
        "--shard_size",
        action=constraint_action(PositiveFloat),
        default=64,
        metavar="MB",
        help="size of a shard in MB; an interrupted shard is redone",
    )
    add(
        "--runner",
        default="local",
        choices=["local", "beam"],
        help="local: processes of this machine; beam: an Apache Beam pipeline",
    )
    _flags.add_reading(parser)
    return parser


def _terminate(*_: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)


@contextlib.contextmanager
def progress_display() -> Iterator[Callable[["Progress"], None]]:
    """Displays the progress of a preparation: fraction done, documents, MB/s, tokens/s."""
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
