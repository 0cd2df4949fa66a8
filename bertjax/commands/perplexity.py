"""Evaluate a causal LM on text: perplexity and bits per byte."""

import argparse
import json
import sys

from bertjax.commands.prepare import FORMAT_HELP, TEXT_FIELD_HELP
from bertjax.constraints import NonNegativeInt, PositiveInt, checked

EPILOG = """\
examples:
  bertjax perplexity --init runs/gpt2 --input 'held_out/*'
  bertjax perplexity --init runs/gpt2 --input wiki.test.txt --stride 256 --json

--input is as for bertjax prepare: globs of text, JSONL or WikiExtractor files, tfds:NAME:SPLIT.
Each document is evaluated in windows of --length tokens with a stride of --stride; every token is
predicted once, with the preceding tokens of its window as context. A smaller stride gives more
context per token and takes longer. --length should not exceed the length of the training sequences,
even if the model has more positions; for an imported model all its positions count as trained.

Perplexities are comparable only between models with the same tokenizer. Bits per byte are
comparable between lossless tokenizers: cased ones with unknown_share (the fraction of [UNK]) 0.
"""


def main(argv: list[str]) -> None:
    """Measures the perplexity of texts and prints the results."""
    arguments = _parser().parse_args(argv)
    from bertjax.corpus import sources, text
    from bertjax.inference import language_model, perplexity

    if note := sources.describe_repeated(arguments.input):
        print(note, file=sys.stderr)
    text.check_sources(
        sources.find_sources(arguments.input),
        format=arguments.format,
        text_field=arguments.text_field,
    )
    model = language_model.load(arguments.init, arguments.precision)
    result = perplexity.measure(
        model,
        text.read_documents(
            arguments.input, format=arguments.format, text_field=arguments.text_field
        ),
        length=arguments.length,
        stride=arguments.stride,
        batch_size=arguments.batch_size,
    )
    if result.num_unknown:
        print(
            f"note: {result.num_unknown / result.num_tokens:.2%} of the tokens are [UNK]: their "
            "characters are not predicted, so bits per byte are too low to compare with those of a "
            "lossless tokenizer",
            file=sys.stderr,
        )
    found = {
        "perplexity": result.perplexity,
        "bits_per_byte": result.bits_per_byte,
        "nats_per_token": result.nats / result.num_tokens,
        "accuracy": result.num_correct / result.num_tokens,
        "unknown_share": result.num_unknown / result.num_tokens,
        "tokens": result.num_tokens,
        "bytes": result.num_bytes,
        "documents": result.num_documents,
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
    add(
        "--init",
        required=True,
        metavar="RUN",
        help="RUN (newest checkpoint), RUN@STEP or RUN@best",
    )
    add(
        "--input",
        required=True,
        nargs="+",
        metavar="GLOB",
        help="files, python-docs or tfds:NAME:SPLIT",
    )
    add("--format", default="auto", help=FORMAT_HELP)
    add("--text_field", default="", metavar="NAME", help=TEXT_FIELD_HELP)
    add(
        "--length",
        action=checked(NonNegativeInt),
        default=0,
        metavar="N",
        help="tokens per window (default: length of the training sequences)",
    )
    add(
        "--stride",
        action=checked(NonNegativeInt),
        default=0,
        metavar="N",
        help="tokens between the starts of windows (default: half of --length)",
    )
    add(
        "--batch_size",
        action=checked(PositiveInt),
        default=8,
        metavar="N",
        help="windows per batch (default: 8)",
    )
    add(
        "--precision",
        default="auto",
        help="auto, float32, bfloat16 ..., as config.model.precision (default: auto)",
    )
    add("--json", action="store_true", help="print one JSON object instead of a table")
    return parser
