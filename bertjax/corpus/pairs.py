"""Read pairs of source and target from text files."""

import json
from collections.abc import Iterator

from bertjax.corpus.documents import replace_surrogates
from bertjax.errors import UserError
from bertjax.io.lines import read_text_lines

FORMAT = "source-target"
"""Name of the format of pairs, and of the training examples made from them."""

_PAIR_KEYS = ("source", "target")


def join_pair(source: str, target: str) -> str:
    """Convert a pair to a document of two lines; line ends inside a text become spaces."""
    return "\n".join(" ".join(text.split("\n")).strip() for text in (source, target))


def read_pairs(path: str) -> Iterator[tuple[str, str]]:
    """Yield (source, target) of every line of a TSV or JSON lines file.

    A line is read as JSON if the file has the extension of JSON lines, or it starts with a brace.

    Raises:
      UserError: A line is not a pair, or one of its texts is empty.
    """
    for where, line in read_text_lines(path):
        if not line.strip():
            continue
        is_json = path.partition(".")[2].startswith(("json", "ndjson")) or line.startswith("{")
        source, target = _parse_json_pair(line, where) if is_json else _parse_tsv_pair(line, where)
        if not (source.strip() and target.strip()):
            raise UserError(
                f"{where}: got an empty source or target, expected text; fill it or remove the line"
            )
        yield source, target


def _parse_tsv_pair(line: str, where: str) -> tuple[str, str]:
    fields = line.split("\t")
    if len(fields) != 2:
        raise UserError(
            f"{where}: got {len(fields)} field(s), expected 2, a source and a target separated by "
            "a tab; fix or remove the line"
        )
    return fields[0], fields[1]


def _parse_json_pair(line: str, where: str) -> tuple[str, str]:
    try:
        row = json.loads(line)
        source, target = (row[key] for key in _PAIR_KEYS)
    except (ValueError, KeyError, TypeError, RecursionError):
        source = target = None
    if not (isinstance(source, str) and isinstance(target, str)):
        raise UserError(
            f'{where}: expected {{"source": "...", "target": "..."}}, got {line[:60]!r}; fix or '
            "remove the line"
        )
    return replace_surrogates(source), replace_surrogates(target)
