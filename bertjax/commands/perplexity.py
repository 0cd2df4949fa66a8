"""Evaluate a causal LM on texts: perplexity and bits per byte."""

import argparse
import json
import sys

from bertjax.commands.prepare import TEXT_FIELD_HELP
from bertjax.constraints import NonNegativeInt, PositiveInt, checked

EPILOG = """\
examples:
  bertjax perplexity --init runs/gpt2 --input 'held_out/*'
  bertjax perplexity --init runs/gpt2 --input wiki.test.txt --stride 256 --json

--input is what bertjax prepare reads: globs of text, JSONL or WikiExtractor files, tfds:NAME:SPLIT.
Windows of --length tokens move over each document by --stride: a smaller stride gives every token
more of what comes before it, and takes longer. Every token is predicted once. A model that learned
from short texts may have positions for longer ones and know nothing of them; an imported model is
taken to know all of its own. Bits per byte compare models whose tokenizers keep all of the text:
cased ones, for which unknown_share, the share of tokens that are [UNK], is 0. Perplexity compares
only models with the same tokenizer.
"""


def main(argv: list[str]) -> None:
    """Measures and prints."""
    arguments = _parser().parse_args(argv)
    from bertjax.corpus import sources, text
    from bertjax.inference import language_model, perplexity

    if note := sources.repeated(arguments.input):
        print(note, file=sys.stderr)
    text.check(
        sources.find_sources(arguments.input),
        format=arguments.format,
        text_field=arguments.text_field,
    )
    model = language_model.load(arguments.init, arguments.precision)
    known = perplexity.measure(
        model,
        text.documents(arguments.input, format=arguments.format, text_field=arguments.text_field),
        length=arguments.length,
        stride=arguments.stride,
        batch_size=arguments.batch_size,
    )
    if known.num_unknown:
        print(
            f"note: {known.num_unknown / known.num_tokens:.2%} of the tokens are [UNK], whose "
            "characters are not predicted: bits per byte are too low, and not comparable with "
            "those of a tokenizer without [UNK]",
            file=sys.stderr,
        )
    found = {
        "perplexity": known.perplexity,
        "bits_per_byte": known.bits_per_byte,
        "nats_per_token": known.nats / known.num_tokens,
        "accuracy": known.num_correct / known.num_tokens,
        "unknown_share": known.num_unknown / known.num_tokens,
        "tokens": known.num_tokens,
        "bytes": known.num_bytes,
        "documents": known.num_documents,
    }
    if arguments.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        shown = f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
        print(f"{name:<15} {shown:>15}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bertjax perplexity",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--init", required=True, metavar="RUN", help="RUN, RUN@STEP or RUN@best")
    add("--input", required=True, nargs="+", help="texts")
    add("--format", default="auto", help="how files are laid out (default: auto, looks at each)")
    add("--text_field", default="", metavar="NAME", help=TEXT_FIELD_HELP)
    default = "(default: as many as the model learned from)"
    add("--length", action=checked(NonNegativeInt), default=0, help=f"tokens of a window {default}")
    add(
        "--stride",
        action=checked(NonNegativeInt),
        default=0,
        help="tokens it moves on by (default: half of it)",
    )
    add(
        "--batch_size", action=checked(PositiveInt), default=8, help="windows at a time (default 8)"
    )
    add("--precision", default="auto", help="as config.model.precision (default auto)")
    add("--json", action="store_true", help="print one JSON object")
    return parser
