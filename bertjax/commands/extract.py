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
  bertjax extract --init runs/bert --input sentences.txt --layers -4,-3,-2,-1 --out features.npz
  bertjax extract --init runs/elmo --input sentences.txt --layers all --out features.parquet
  bertjax extract --init runs/bert --input sentences.txt --pool mean --out sentences.parquet

--input has one text a line. Layer 0 is what the first layer reads, -1 the last one. Without
pooling, each token of a text has a row, special tokens have none, and two numbers say which
characters of the text the token covers; mean is over these rows.

An .npz holds features [rows, layers, width], layers, and of tokens ids, spans [rows, 2] and begins:
text i has the rows begins[i] to begins[i + 1]. A .parquet has the columns text, layer_N, and of
tokens token, piece, begin, end. Memory stays the same however long the input is.

A run's precision is mostly auto, which multiplies in bfloat16: --precision float32 is slower and
gives the features of transformers to five digits or so.
"""


def main(argv: list[str]) -> None:
    """Reads, computes, writes, and tells what was written."""
    arguments = _parser().parse_args(_joined(argv))

    from bertjax.errors import UserError
    from bertjax.inference import feature_files
    from bertjax.inference import features as inference_features
    from bertjax.io import copies, storage
    from bertjax.io.lines import read_text_lines
    from bertjax.runtime.progress import progress_display

    source, out = arguments.input, storage.to_path(arguments.out)
    feature_files.check_output(out)
    reading = _Reading(source)
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
            raise UserError(f"{source} holds no text: expected one a line")
    if truncated:
        room = encoding.reader.max_text_tokens
        print(f"note: texts cut to their first {room} tokens: {truncated:,}", file=sys.stderr)
    rows = "tokens" if tokens else "texts"
    print(f"{out}: {count:,} {rows}, layers {encoding.layers} of width {shape[-1]:,}")


class _Reading:
    """How much of a file has come to features, by its bytes."""

    def __init__(self, source: str):
        # Sizes of compressed files say nothing of their texts.
        is_plain = os.path.isfile(source) and not source.endswith((".gz", ".bz2", ".xz", ".zst"))
        self._size = os.path.getsize(source) if is_plain else 0
        self._sizes: collections.deque[int] = collections.deque()
        self._texts = self._bytes = 0

    def count(self, texts: Iterable[str]) -> Iterator[str]:
        """Passes the texts on, some time before their features are there."""
        for text in texts:
            self._sizes.append(len(text.encode()) + 1)
            yield text

    def done(self, count: int) -> tuple[float | None, str]:
        """The share that is done once `count` more texts are, and their number."""
        self._texts += count
        self._bytes += sum(self._sizes.popleft() for _ in range(count))
        share = min(1.0, self._bytes / self._size) if self._size else None
        return share, f"{self._texts:,} texts"


def _joined(argv: list[str]) -> list[str]:
    """`--layers -2,-1` as `--layers=-2,-1`: by itself argparse takes -2,-1 for an option."""
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
    add("--init", required=True, metavar="RUN", help="RUN, RUN@STEP or RUN@best")
    add("--input", required=True, metavar="FILE", help="text, one a line")
    add("--out", required=True, metavar="FILE", help="a new .npz or .parquet")
    add("--layers", default="-1", help="numbers with commas between, or all (default: -1)")
    add("--pool", default="none", choices=["none", "mean", "cls"], help="one row a text")
    add(
        "--batch_size",
        action=checked(PositiveInt),
        default=64,
        metavar="N",
        help="texts at a time (default: 64)",
    )
    add(
        "--max_seq_length",
        action=checked(NonNegativeInt),
        default=0,
        metavar="N",
        help="tokens of a text with special ones (default: what the model reads, or 512)",
    )
    add("--truncate", action="store_true", help="cut longer texts instead of refusing them")
    add("--precision", default="", help="as config.model.precision (default: that of the run)")
    return parser
