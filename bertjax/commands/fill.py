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

[MASK] stands for one token, whatever the run's tokenizer calls it; a text may have several. Without
texts, the lines of standard input are filled. Probabilities are over the whole vocabulary, each
place for itself. A run's precision is mostly auto, which multiplies in bfloat16: --precision
float32 is slower and gives those of transformers to five digits or so.
"""


def main(argv: list[str]) -> None:
    """Prints what the model puts in each place."""
    arguments = _parser().parse_args(argv)
    from bertjax.inference import fill_mask
    from bertjax.io.lines import read_text_lines

    filler = fill_mask.load(arguments.init, arguments.top, arguments.precision)
    asked = iter(arguments.texts or (text for _, text in read_text_lines(None) if text.strip()))
    while group := list(itertools.islice(asked, arguments.batch_size)):
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
    add("texts", nargs="*", metavar="TEXT", help="texts with [MASK] (default: standard input)")
    add("--init", required=True, metavar="RUN", help="RUN, RUN@STEP or RUN@best")
    add(
        "--top",
        action=checked(PositiveInt),
        default=5,
        metavar="K",
        help="candidates of each place (default 5)",
    )
    add(
        "--batch_size",
        action=checked(PositiveInt),
        default=32,
        metavar="N",
        help="texts at a time (default 32)",
    )
    add("--precision", default="", help="as config.model.precision (default: that of the run)")
    add("--json", action="store_true", help="print a JSON object a line")
    return parser
