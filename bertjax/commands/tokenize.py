"""Convert lines of text to token ids, or ids back to text."""

import argparse
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

from bertjax.errors import UserError

if TYPE_CHECKING:
    from bertjax.interfaces import Tokenizer

EPILOG = """\
examples:
  echo 'Hello, world' | bertjax tokenize --tokenizer vocab
  {"ids": [7592, 1010, 2088], "pieces": ["hello", ",", "world"]}

  echo '7592 1010 2088' | bertjax tokenize --tokenizer vocab --decode
  hello, world

  bertjax tokenize --tokenizer vocab < text.txt > ids.jsonl
  bertjax tokenize --tokenizer vocab --decode < ids.jsonl

Prints one line per line of standard input. --decode reads JSON objects with
"ids", JSON lists, or ids separated by spaces. Special tokens are neither added
nor recognised: a literal [MASK] in a line is ordinary text.
"""

_READ_BYTES = 1 << 20


def main(argv: list[str]) -> None:
    """Tokenizes or decodes the lines of standard input, as soon as they arrive."""
    arguments = _parser().parse_args(argv)
    from bertjax.io.lines import BYTE_ORDER_MARK
    from bertjax.tokenizers.tokenizer import load

    tokenizer = load(arguments.tokenizer, lowercase=arguments.lowercase)
    answer = _decode if arguments.decode else _encode
    number = 1
    for lines in _batches(sys.stdin.buffer):
        if number == 1:
            lines[0] = lines[0].removeprefix(BYTE_ORDER_MARK)
        for text in answer(tokenizer, lines, number):
            sys.stdout.buffer.write(text.encode() + b"\n")
        sys.stdout.buffer.flush()
        number += len(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bertjax tokenize",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--tokenizer",
        required=True,
        metavar="DIR",
        help="folder of `bertjax tokenizer`, or released files such as vocab.txt, spiece.model, "
        "tokenizer.json",
    )
    parser.add_argument(
        "--decode", action="store_true", help="convert ids to text (default: text to ids)"
    )
    case = parser.add_mutually_exclusive_group()
    case.add_argument(
        "--cased",
        dest="lowercase",
        action="store_false",
        help="keep case, for a vocab.txt (default: inferred from its tokens)",
    )
    case.add_argument(
        "--uncased", dest="lowercase", action="store_true", help="lowercase, for a vocab.txt"
    )
    parser.set_defaults(lowercase=None)
    return parser


def _batches(stream: BinaryIO) -> Iterator[list[bytes]]:
    """Yields all complete lines received so far: many at once of a file, one of a terminal."""
    unfinished: list[bytes] = []
    while chunk := stream.read1(_READ_BYTES):
        head, newline, tail = chunk.rpartition(b"\n")
        if newline:
            yield b"".join([*unfinished, head]).split(b"\n")
            unfinished = []
        unfinished.append(tail)
    if any(unfinished):
        yield [b"".join(unfinished)]


def _encode(tokenizer: "Tokenizer", lines: list[bytes], number: int) -> Iterator[str]:
    texts, failure = [], None
    for line in lines:
        try:
            texts.append(line.removesuffix(b"\r").decode())
        except UnicodeDecodeError as error:
            where = f"standard input, line {number + len(texts)}, byte {error.start}"
            failure = UserError(f"{where}: not UTF-8; convert the text with iconv")
            break
    for ids in tokenizer.encode_batch(texts):
        yield json.dumps({"ids": ids, "pieces": tokenizer.ids_to_pieces(ids)}, ensure_ascii=False)
    if failure:
        raise failure


def _decode(tokenizer: "Tokenizer", lines: list[bytes], number: int) -> Iterator[str]:
    for place, line in enumerate(lines, number):
        try:
            yield tokenizer.decode(_parse_ids(line))
        except UserError as error:
            raise UserError(f"standard input, line {place}: {error}") from None


def _parse_ids(line: bytes) -> list[int]:
    try:
        text = line.decode().strip()
        ids = json.loads(text) if text.startswith(("{", "[")) else [int(n) for n in text.split()]
        if isinstance(ids, dict):
            ids = ids["ids"]
        if not isinstance(ids, list) or any(type(identity) is not int for identity in ids):
            raise ValueError
    except (ValueError, KeyError):
        shown = line[:60].decode(errors="replace")
        raise UserError(
            f'expected {{"ids": [7592, 2088]}}, [7592, 2088] or 7592 2088, got {shown!r}'
        ) from None
    return ids
