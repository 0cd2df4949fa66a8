"""Generate the target of each source line with an encoder-decoder."""

import argparse
import itertools
import sys
import time
from collections.abc import Iterator

from bertjax.constraints import Finite, PositiveInt, checked
from bertjax.errors import UserError
from bertjax.validation.unused_options import Unread, check_flags

EPILOG = """\
examples:
  bertjax translate --init runs/transformer --input sources.txt > targets.txt
  echo 'a b c' | bertjax translate --init runs/reversal
  bertjax translate --init runs/reversal --input reversals/unseen.tsv

--init is a run with the objective seq2seq. Every line is a source, or a source,
a tab and its reference target; then the fraction of exact matches is printed to
standard error.
"""

_BATCHES_AT_ONCE = 16
"""Number of batches within which sources are sorted by length."""

_UNREAD = (
    Unread(
        ("length_penalty",),
        "beams",
        lambda beams: beams == 1,
        "an integer >= 2, since it ranks beams",
        "raise --beams, or leave it out",
    ),
)


def main(argv: list[str]) -> None:
    """Generates the target of each line; prints speed and exact matches to standard error."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    check_flags(_UNREAD, vars(arguments), parser.get_default)
    from bertjax.inference import translate

    sources = _sources(arguments.input)
    translator = translate.load(
        arguments.init, beams=arguments.beams, length_penalty=arguments.length_penalty
    )
    start, lines, references, correct = time.monotonic(), 0, 0, 0
    size = arguments.batch_size * _BATCHES_AT_ONCE
    while group := list(itertools.islice(sources, size)):
        pairs = [line.split("\t") for line in group]
        targets = translator.translate([pair[0] for pair in pairs], arguments.batch_size)
        print("\n".join(targets), flush=True)
        known = [(one, pair[1]) for one, pair in zip(targets, pairs, strict=True) if len(pair) == 2]
        if known:
            correct += translate.count_exact_matches(
                *zip(*known, strict=True), translator.tokenizer
            )
        lines, references = lines + len(group), references + len(known)
    print(f"{lines:,} lines in {time.monotonic() - start:.1f} s", file=sys.stderr)
    if references:
        share = correct / references
        print(f"exact match: {correct:,} of {references:,} targets, {share:.1%}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bertjax translate",
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
    add("--input", metavar="FILE", help="file with one source per line (default: standard input)")
    add(
        "--beams",
        action=checked(PositiveInt),
        default=4,
        metavar="N",
        help="number of beams; 1 for greedy decoding (default: 4)",
    )
    add(
        "--length_penalty",
        action=checked(Finite),
        default=0.6,
        metavar="X",
        help="alpha of the divisor ((5 + length) / 6) ** alpha of the score of a beam (default: "
        "0.6)",
    )
    add(
        "--batch_size",
        action=checked(PositiveInt),
        default=32,
        metavar="N",
        help="sources per batch (default: 32)",
    )
    return parser


def _sources(path: str | None) -> Iterator[str]:
    """Yields the checked lines of a file, compressed or not, or of standard input."""
    from bertjax.io.file_kinds import TSV
    from bertjax.io.lines import read_text_lines

    return map(_checked, read_text_lines(path, tables=(TSV,)))


def _checked(line: tuple[str, str]) -> str:
    where, text = line
    if not text.strip():
        raise UserError(f"{where}: got an empty source; remove the line")
    if text.count("\t") > 1:
        raise UserError(
            f"{where}: got {text.count(chr(9)) + 1} fields, expected a source, or a source, a tab "
            "and its target; remove the other columns"
        )
    return text
