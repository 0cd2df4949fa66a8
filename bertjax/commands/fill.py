"""Fill [MASK] tokens in texts with a trained masked language model."""

import argparse
import itertools
import json
import sys

from bertjax.constraints import PositiveInt, checked

EPILOG = """\
examples:
  bertjax fill --init runs/bert 'the man went to the [MASK] .'
  bertjax fill --init runs/bert --top 10 --json < sentences.txt

[MASK] is one masked token, also if the tokenizer has another name for it; a
text may have several, which are predicted independently. Probabilities are over
the whole vocabulary. The default precision of most runs, auto, multiplies in
bfloat16 where the hardware supports it; --precision float32 is slower and
matches transformers to about five digits.
"""


def main(argv: list[str]) -> None:
    """Prints the most likely tokens at each masked position."""
    arguments = _parser().parse_args(argv)
    from bertjax.inference import fill_mask
    from bertjax.io.lines import read_text_lines

    filler = fill_mask.load(arguments.init, arguments.top, arguments.precision)
    texts = iter(arguments.texts or (text for _, text in read_text_lines(None) if text.strip()))
    while group := list(itertools.islice(texts, arguments.batch_size)):
        for text, places in zip(group, filler.fill(group), strict=True):
            if arguments.json:
                print(json.dumps({"text": text, "places": places}, ensure_ascii=False))
            else:
                _show(text, places)
        sys.stdout.flush()


def _show(text: str, places: list) -> None:
    print(text)
    for number, candidates in enumerate(places, 1):
        place = f"{number}. " if len(places) > 1 else ""
        for token, probability in candidates:
            print(f"  {place}{probability:6.1%}  {token}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bertjax fill",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "texts",
        nargs="*",
        metavar="TEXT",
        help="texts with [MASK] (default: the lines of standard input)",
    )
    add(
        "--init",
        required=True,
        metavar="RUN",
        help="RUN (newest checkpoint), RUN@STEP or RUN@best",
    )
    add(
        "--top",
        action=checked(PositiveInt),
        default=5,
        metavar="K",
        help="candidates per masked position (default: 5)",
    )
    add(
        "--batch_size",
        action=checked(PositiveInt),
        default=32,
        metavar="N",
        help="texts per batch (default: 32)",
    )
    add(
        "--precision",
        default="",
        help="auto, float32, bfloat16 ..., as config.model.precision (default: that of the run)",
    )
    add("--json", action="store_true", help="print one JSON object per text")
    return parser
