"""Predict [MASK] tokens in texts with a masked language model."""

import itertools
import json
import sys

from bertjax.commands import _flags
from bertjax.constraints import PositiveInt, constraint_action

GROUP = "Use"

EPILOG = """\
examples:
  bertjax fill-mask --model runs/bert 'the man went to the [MASK] .'
  bertjax fill-mask --model runs/bert --top_k 10 --json --input sentences.txt

[MASK] is one masked token, also if the tokenizer has another name for it; a
text may have several, which are predicted independently. Probabilities are over
the whole vocabulary. The default precision of most runs, auto, computes matmuls
in bfloat16 where the hardware supports it; --precision float32 is slower and
matches transformers to about five digits.
"""


def main(argv: list[str]) -> None:
    """Prints the most likely tokens at each masked position."""
    arguments = parser().parse_args(argv)
    _flags.refuse_input_with_texts(arguments.input, arguments.texts)
    from bertjax.huggingface import run_cache
    from bertjax.inference import fill_mask
    from bertjax.io.lines import read_text_lines

    model = run_cache.find_run(arguments.model)
    filler = fill_mask.load(model, arguments.top_k, arguments.precision)
    texts = iter(
        arguments.texts or (text for _, text in read_text_lines(arguments.input) if text.strip())
    )
    while group := list(itertools.islice(texts, arguments.batch_size)):
        for text, candidates in zip(group, filler.fill(group), strict=True):
            if arguments.json:
                print(json.dumps({"text": text, "candidates": candidates}, ensure_ascii=False))
            else:
                _show(text, candidates)
        sys.stdout.flush()


def _show(text: str, candidates: list) -> None:
    print(text)
    for number, of_mask in enumerate(candidates, 1):
        label = f"{number}. " if len(candidates) > 1 else ""
        for token, probability in of_mask:
            print(f"  {label}{probability:6.1%}  {token}")


def parser() -> _flags.Parser:
    """Returns the parser of the command line."""
    parser = _flags.Parser(
        "bertjax fill-mask",
        __doc__,
        EPILOG,
        renamed={"--init": "--model", "--top": "--top_k"},
    )
    parser.add_argument(
        "texts",
        nargs="*",
        metavar="TEXT",
        help="texts with [MASK] (default: the lines of --input)",
    )
    _flags.add_model(parser)
    parser.add_argument(
        "--input",
        metavar="FILE",
        help="file with one text per line (default: standard input)",
    )
    parser.add_argument(
        "--top_k",
        action=constraint_action(PositiveInt),
        default=5,
        metavar="K",
        help="candidates per masked position",
    )
    _flags.add_batch_size(parser, 32, "texts")
    _flags.add_precision(parser)
    _flags.add_json(parser, "print one JSON object per text")
    return parser
