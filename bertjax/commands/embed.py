"""Embed texts with a trained encoder: a vector for each text, or for each token and layer."""

import argparse
import itertools
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from bertjax.commands import _flags

GROUP = "Use"

EPILOG = """\
examples:
  bertjax embed --model runs/bert --input sentences.txt --pooling mean \\
      --output sentences.parquet
  bertjax embed --model all-MiniLM-L6-v2/ --input sentences.txt --truncate \\
      --output sentences.npy
  bertjax embed --model runs/pairs --input queries.txt --prompt_name query \\
      --output queries.npy
  bertjax embed --model runs/bert --input sentences.txt \\
      --layers -4,-3,-2,-1 --output tokens.npz
  bertjax embed --model runs/pairs --input papers.parquet --text_field abstract \\
      --output papers.npy
  bertjax embed --model runs/elmo --input sentences.txt --layers all \\
      --output tokens.parquet

Layer 0 is the output of the embeddings, -1 the last layer. With --pooling
none there is one row per token, without special tokens, with the range of
characters that the token covers. --pooling mean averages a sequence, [CLS] and
[SEP] included, as sentence-transformers does; weighted averages with weights
1, 2, 3 ... (SGPT, Muennighoff 2022); cls is the vector of [CLS]; --normalize
scales vectors to unit length. A folder of sentence-transformers and a run of
`bertjax finetune --config pairs` specify pooling, normalisation and maximum
length; options change them. --prompt_name query or document puts their prompt
before every text, --prompt TEXT another one.

An .npz or .safetensors has features [rows, layers, width] and layers; for
tokens also ids, spans [rows, 2] and begins: text i has the rows begins[i] to
begins[i + 1]. An .npy is one array [texts, width], of one layer. A .parquet has
the columns text (the number of the text, from 0) and layer_N; for tokens also
token, piece, begin, end. The input has a text per line, or per row (CSV, TSV,
JSON lines, Parquet, Arrow). An empty text counts too, without tokens. The input
is streamed: memory use is constant. Until the output is complete, its parts are
in .NAME.unfinished: the same command resumes after an interruption; other
options are an error until this folder is removed.

The default precision of most runs, auto, computes matmuls in bfloat16 where
the hardware supports it; --precision float32 is slower and matches
transformers to about five digits.
"""


def main(argv: list[str]) -> None:
    """Computes features of every text, writes them to a file and prints its size."""
    arguments = parser().parse_args(_join_layers(argv))

    from bertjax import pretrained
    from bertjax.corpus.text import read_texts
    from bertjax.huggingface import run_cache, sentence_transformers
    from bertjax.inference import feature_files
    from bertjax.inference import features as inference_features
    from bertjax.inference.growing_arrays import ResumableTexts
    from bertjax.io import copies, storage
    from bertjax.io.unfinished import parts_folder

    source, out = arguments.input, storage.to_path(arguments.output)
    feature_files.check_output(out)
    texts = ResumableTexts(read_texts(source, arguments.text_field), source)
    run = pretrained.load(run_cache.find_run(arguments.model))
    settings = sentence_transformers.choose(
        run.config,
        pooling=arguments.pooling,
        normalize=arguments.normalize,
        max_length=arguments.max_length,
        dim=arguments.dim,
        default="none",
    )
    tokens = settings.pooling == "none"
    prompt = sentence_transformers.find_prompt(settings, arguments.prompt, arguments.prompt_name)
    encoding = inference_features.load(
        run,
        layers=arguments.layers,
        pooling=settings.pooling,
        normalize=settings.normalize,
        dim=settings.dim,
        max_seq_length=settings.max_length,
        truncate=arguments.truncate,
        precision=arguments.precision,
    )
    feature_files.check_contents(out, encoding.layers, tokens=tokens)
    options = {
        "layers": encoding.layers,
        "pooling": settings.pooling,
        "normalize": settings.normalize,
        "prompt": prompt,
        "dim": settings.dim,
        "max_length": encoding.reader.max_seq_length,
        "batch_size": arguments.batch_size,
        "precision": arguments.precision,
        **run.identity(),
    }
    with (
        parts_folder(out, options) as folder,
        copies.upload_file(out) as path,
        feature_files.open_writer(path, encoding.layers, folder, encoding.tokenizer) as file,
    ):
        num_truncated = _write_features(file, encoding, texts, source, options)
    if num_truncated:
        max_tokens = encoding.reader.max_text_tokens
        print(f"note: texts truncated to {max_tokens} tokens: {num_truncated:,}", file=sys.stderr)
    if texts.num_empty:
        print(f"note: empty texts, which count too: {texts.num_empty:,}", file=sys.stderr)
    count, _, width = file.headers["features"][0]
    rows = "tokens" if tokens else "texts"
    print(f"{out}: {count:,} {rows}, layers {encoding.layers} of width {width:,}")


def _write_features(
    file: Any, encoding: Any, texts: Any, source: str, options: Mapping[str, Any]
) -> int:
    """Writes the features of all texts that are not in the file; returns how many were too long."""
    from bertjax.errors import UserError
    from bertjax.inference import features as inference_features
    from bertjax.runtime.progress import progress_display

    num_truncated, size = 0, _text_size(source)
    if file.progress is not None:
        texts.resume(file.progress, file.folder)
        num_truncated = file.progress["truncated"]
        print(f"note: resuming after {texts.num_done:,} texts", file=sys.stderr)
    chunks = inference_features.extract(
        encoding,
        (options["prompt"] + text for text in texts),
        source,
        batch_size=options["batch_size"],
        first=texts.num_done,
    )
    with progress_display() as display:
        for chunk, features in chunks:
            file.add(chunk, features, tokens=options["pooling"] == "none")
            texts.done(len(chunk.counts))
            num_truncated += chunk.num_truncated
            file.save(texts.progress() | {"truncated": num_truncated})
            share = min(1.0, texts.num_bytes / size) if size else None
            display.update(share, f"{texts.num_done:,} texts")
    if not (file.headers and file.headers["features"][0][0]):
        file.discard()
        raise UserError(f"{source} has no text: expected one per line or row")
    return num_truncated


def _text_size(source: str) -> int:
    """The bytes of text in a file of lines; 0 for a compressed one or a table."""
    from bertjax.corpus.text import table_format

    is_plain = os.path.isfile(source) and not source.endswith((".gz", ".bz2", ".xz", ".zst"))
    return os.path.getsize(source) if is_plain and table_format(source) is None else 0


def _join_layers(argv: list[str]) -> list[str]:
    """Rewrites `--layers -2,-1` as `--layers=-2,-1`, since argparse parses -2,-1 as an option."""
    words = list(argv)
    for place, (word, following) in enumerate(itertools.pairwise(argv)):
        if word == "--layers" and re.match(r"-\d", following):
            words[place : place + 2] = [f"{word}={following}"]
            break
    return words


def parser() -> _flags.Parser:
    """Returns the parser of the command line."""
    parser = _flags.Parser(
        "bertjax embed",
        __doc__,
        EPILOG,
        renamed={
            "--init": "--model",
            "--out": "--output",
            "--pool": "--pooling",
            "--max_seq_length": "--max_length",
        },
    )
    add = parser.add_argument
    _flags.add_model(parser)
    add("--input", required=True, metavar="FILE", help="file with one text per line, or a table")
    add(
        "--text_field",
        default="",
        metavar="NAME",
        help="field of JSON lines, or column of a table, with the text (default: text)",
    )
    add(
        "--output",
        required=True,
        metavar="FILE",
        help=".npy, .npz, .safetensors or .parquet file to create",
    )
    add("--layers", default="-1", help="layer numbers separated by commas, or all")
    _flags.add_pooling(parser, "none", "one row per token; or one per text: ")
    _flags.add_prompt(parser)
    _flags.add_dim(parser)
    add(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="scale every vector to unit length (default: as the model specifies, or no)",
    )
    _flags.add_batch_size(parser, 64, "rows, which short texts share,")
    _flags.add_max_length(parser)
    add(
        "--truncate",
        action="store_true",
        help="truncate longer texts (default: stop with an error)",
    )
    _flags.add_precision(parser)
    return parser
