"""Extract token or sentence embeddings from a trained encoder."""

import argparse
import collections
import itertools
import os
import re
import sys
from collections.abc import Iterable, Iterator

from bertjax.constraints import NonNegativeInt, PositiveInt, checked

EPILOG = """\
examples:
  bertjax extract --init runs/bert --input sentences.txt --out features.npz
  bertjax extract --init runs/bert --input sentences.txt \\
      --layers -4,-3,-2,-1 --out features.npz
  bertjax extract --init runs/elmo --input sentences.txt --layers all \\
      --out features.parquet
  bertjax extract --init runs/bert --input sentences.txt --pool mean \\
      --out sentences.parquet

Layer 0 is the output of the embeddings, -1 the last layer. With --pool none
there is one row per token, without special tokens, with the range of characters
that the token covers; --pool mean averages these rows; --pool cls is the vector
of [CLS].

An .npz has features [rows, layers, width] and layers; for tokens also ids,
spans [rows, 2] and begins: text i has the rows begins[i] to begins[i + 1]. A
.parquet has the columns text and layer_N; for tokens also token, piece, begin,
end. The input is streamed: memory use is constant.

The default precision of most runs, auto, multiplies in bfloat16 where the
hardware supports it; --precision float32 is slower and matches transformers to
about five digits.
"""


def main(argv: list[str]) -> None:
    """Computes features of every text, writes them to a file and prints its size."""
    arguments = _parser().parse_args(_join_layers(argv))

    from bertjax.errors import UserError
    from bertjax.inference import feature_files
    from bertjax.inference import features as inference_features
    from bertjax.io import copies, storage
    from bertjax.io.lines import read_text_lines
    from bertjax.runtime.progress import progress_display

    source, out = arguments.input, storage.to_path(arguments.out)
    feature_files.check_output(out)
    reading = _InputProgress(source)
    lines = reading.count(text for _, text in read_text_lines(source, tables=()))
    encoding = inference_features.load(
        arguments.init,
        layers=arguments.layers,
        pool=arguments.pool,
        max_seq_length=arguments.max_seq_length,
        truncate=arguments.truncate,
        precision=arguments.precision,
    )
    tokens, count, truncated, shape = arguments.pool == "none", 0, 0, ()
    with (
        copies.upload_file(out) as path,
        feature_files.open_writer(path, encoding.layers, encoding.tokenizer) as file,
        progress_display() as display,
    ):
        for chunk, features in inference_features.extract(
            encoding, lines, source, batch_size=arguments.batch_size
        ):
            file.add(chunk, features, tokens=tokens)
            count, shape = count + len(features), features.shape[1:]
            truncated += chunk.num_truncated
            display.update(*reading.done(len(chunk.counts)))
        if not count:
            raise UserError(f"{source} has no text: expected one per line")
    if truncated:
        room = encoding.reader.max_text_tokens
        print(f"note: texts truncated to {room} tokens: {truncated:,}", file=sys.stderr)
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bertjax extract",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--init",
        required=True,
        metavar="RUN",
        help="RUN (newest checkpoint), RUN@STEP or RUN@best",
    )
    add("--input", required=True, metavar="FILE", help="file with one text per line")
    add("--out", required=True, metavar="FILE", help=".npz or .parquet file to create")
    add(
        "--layers",
        default="-1",
        help="layer numbers separated by commas, or all (default: -1, the last)",
    )
    add(
        "--pool",
        default="none",
        choices=["none", "mean", "cls"],
        help="none: one row per token; mean or cls: one row per text (default: none)",
    )
    add(
        "--batch_size",
        action=checked(PositiveInt),
        default=64,
        metavar="N",
        help="texts per batch (default: 64)",
    )
    add(
        "--max_seq_length",
        action=checked(NonNegativeInt),
        default=0,
        metavar="N",
        help="maximum length in tokens, special tokens included (default: that of the model, "
        "or 512)",
    )
    add(
        "--truncate",
        action="store_true",
        help="truncate longer texts (default: stop with an error)",
    )
    add(
        "--precision",
        default="",
        help="auto, float32, bfloat16 ..., as config.model.precision (default: that of the run)",
    )
    return parser
