"""Count the tokens of a text file."""

import argparse
import json
import pathlib


def main(argv: list[str]) -> None:
    """Prints the number of lines and of tokens as JSON."""
    parser = argparse.ArgumentParser(prog="bertjax count", description=__doc__)
    parser.add_argument("--tokenizer", required=True, metavar="DIR")
    parser.add_argument("text", metavar="FILE")
    arguments = parser.parse_args(argv)
    from bertjax.tokenizers.tokenizer import load

    lines = pathlib.Path(arguments.text).read_text(encoding="utf-8").splitlines()
    tokens = sum(map(len, load(arguments.tokenizer).encode_batch(lines)))
    print(json.dumps({"lines": len(lines), "tokens": tokens}))
