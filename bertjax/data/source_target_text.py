"""Sources and targets out of files: TSV, JSON lines, and TFDS.

A pair is a document of two lines, the source and the target, so that everything that is done with
documents is done with pairs: a tokenizer is trained on them, they are packed in child processes,
some are held out, and a corpus of them has a fingerprint.
"""

import json
from collections.abc import Iterator

from bertjax.data.lines import texts
from bertjax.errors import UserError

FORMAT = "source-target"
"""Of text, and of the examples that are made of it."""

KEYS = ("source", "target")
"""In JSON."""


def document(source: str, target: str) -> str:
    """A pair as a document; line ends within it become spaces."""
    return "\n".join(" ".join(text.split("\n")).strip() for text in (source, target))


def pairs(path: str) -> Iterator[tuple[str, str]]:
    """Yields every pair of a file: of TSV, or of JSON objects, which begin with a brace.

    Raises:
      UserError: a line is no pair, or one of its texts is empty.
    """
    for where, line in texts(path):
        if not line.strip():
            continue
        is_json = path.partition(".")[2].startswith(("json", "ndjson")) or line.startswith("{")
        source, target = _of_json(line, where) if is_json else _of_tsv(line, where)
        if not (source.strip() and target.strip()):
            raise UserError(f"{where}: an empty source or target; fill it or remove the line")
        yield source, target


def _of_tsv(line: str, where: str) -> tuple[str, str]:
    fields = line.split("\t")
    if len(fields) != 2:
        raise UserError(
            f"{where}: {len(fields)} field(s), wanted 2, a source and a target, between which "
            "stands a tab; mend or remove the line"
        )
    return fields[0], fields[1]


def _of_json(line: str, where: str) -> tuple[str, str]:
    try:
        row = json.loads(line)
        source, target = (row[key] for key in KEYS)
    except (ValueError, KeyError, TypeError, RecursionError):
        source = target = None
    if not (isinstance(source, str) and isinstance(target, str)):
        raise UserError(
            f'{where}: wanted {{"source": "...", "target": "..."}}, got {line[:60]!r}; mend or '
            "remove the line"
        )
    # JSON may spell half of a surrogate pair, which no tokenizer takes.
    return tuple(text.encode("utf-8", "replace").decode() for text in (source, target))
