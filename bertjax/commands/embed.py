"""Embed texts with a trained encoder: a vector for each text, or for each token and layer."""

import argparse
import collections
import itertools
import os
import re
import sys
from collections.abc import Iterable, Iterator

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
the columns text (the number of the line, from 0) and layer_N; for tokens also
token, piece, begin, end. The input is streamed: memory use is constant.

The default precision of most runs, auto, computes matmuls in bfloat16 where
the hardware supports it; --precision float32 is slower and matches
transformers to about five digits.
"""


def main(argv: list[str]) -> None:
    """Computes features of every text, writes them to a file and prints its size."""
    arguments = parser().parse_args(_join_layers(argv))

    from bertjax import pretrained
    from bertjax.errors import UserError
    from bertjax.huggingface import run_cache, sentence_transformers
    from bertjax.inference import feature_files
    from bertjax.inference import features as inference_features
    from bertjax.io import copies, storage
    from bertjax.io.lines import read_text_lines
    from bertjax.runtime.progress import progress_display

    source, out = arguments.input, storage.to_path(arguments.output)
    feature_files.check_output(out)
    reading = _InputProgress(source)
    lines = reading.count(text for _, text in read_text_lines(source, tables=()))
    run = pretrained.load(run_cache.find_run(arguments.model))
    settings = sentence_transformers.choose(
        run.config,
        pooling=arguments.pooling,
        normalize=arguments.normalize,
        max_length=arguments.max_length,
        default="none",
    )
    prompt = sentence_transformers.find_prompt(settings, arguments.prompt, arguments.prompt_name)
    tokens, count, truncated, shape = settings.pooling == "none", 0, 0, ()
    encoding = inference_features.load(
        run,
        layers=arguments.layers,
        pooling=settings.pooling,
        normalize=settings.normalize,
        max_seq_length=settings.max_length,
        truncate=arguments.truncate,
        precision=arguments.precision,
    )
    feature_files.check_contents(out, encoding.layers, tokens=tokens)
    with (
        copies.upload_file(out) as path,
        feature_files.open_writer(path, encoding.layers, encoding.tokenizer) as file,
        progress_display() as display,
    ):
        for chunk, features in inference_features.extract(
            encoding, (prompt + line for line in lines), source, batch_size=arguments.batch_size
        ):
            file.add(chunk, features, tokens=tokens)
            count, shape = count + len(features), features.shape[1:]
            truncated += chunk.num_truncated
            display.update(*reading.done(len(chunk.counts)))
        if not count:
            raise UserError(f"{source} has no text: expected one per line")
    if truncated:
        max_tokens = encoding.reader.max_text_tokens
        print(f"note: texts truncated to {max_tokens} tokens: {truncated:,}", file=sys.stderr)
    rows = "tokens" if tokens else "texts"
    print(f"{out}: {count:,} {rows}, layers {encoding.layers} of width {shape[-1]:,}")


class _InputProgress:
    """Progress of an input file in bytes, from the texts whose features are done."""

    def __init__(self, source: str):
        # The size of a compressed file does not determine that of its text.
        is_plain = os.path.isfile(source) and not source.endswith((".gz", ".bz2", ".xz", ".zst"))
        self._size = os.path.getsize(source) if is_plain else 0
        self._sizes: collections.deque[int] = collections.deque()
        self._texts = self._bytes = 0

    def count(self, texts: Iterable[str]) -> Iterator[str]:
        """Yields the texts and records their sizes."""
        for text in texts:
            self._sizes.append(len(text.encode()) + 1)
            yield text

    def done(self, count: int) -> tuple[float | None, str]:
        """Marks `count` more texts as done; returns the fraction of the file and a message."""
        self._texts += count
        self._bytes += sum(self._sizes.popleft() for _ in range(count))
        share = min(1.0, self._bytes / self._size) if self._size else None
        return share, f"{self._texts:,} texts"


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
    add("--input", required=True, metavar="FILE", help="file with one text per line")
    add(
        "--output",
        required=True,
        metavar="FILE",
        help=".npy, .npz, .safetensors or .parquet file to create",
    )
    add("--layers", default="-1", help="layer numbers separated by commas, or all")
    _flags.add_pooling(parser, "none", "one row per token; or one per text: ")
    _flags.add_prompt(parser)
    add(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="scale every vector to unit length (default: as the model specifies, or no)",
    )
    _flags.add_batch_size(parser, 64, "texts")
    _flags.add_max_length(parser)
    add(
        "--truncate",
        action="store_true",
        help="truncate longer texts (default: stop with an error)",
    )
    _flags.add_precision(parser)
    return parser
