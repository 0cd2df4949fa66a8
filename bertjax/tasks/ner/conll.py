"""Read and write the column format of the CoNLL shared tasks: a word a line, its tag last.

`-DOCSTART-` begins a document; it is no word. A file without that line is one document. Columns are
parted by spaces or tabs, and there may be any number of them between word and tag.
"""

import dataclasses
import pathlib
import re
from collections.abc import Iterable, Sequence

from bertjax.errors import UserError, nearest
from bertjax.io import files as io_files
from bertjax.io.lines import read_text_lines
from bertjax.metrics.entities import OUTSIDE, extract_entities, split_tag, starts_entity

DOCUMENT = "-DOCSTART-"
AS_IT_IS = "as-it-is"
SCHEMES = ("auto", "iob1", "iob2", "bioes", AS_IT_IS)

_TAG = re.compile(r"O|[BIES]-\S+")
_GAP = re.compile(r"[ \t]+")  # other white space may be part of a word


@dataclasses.dataclass(frozen=True)
class Sentence:
    """The words of a sentence and what a file says of each.

    Attributes:
      words: The first column.
      tags: The last column.
      between: The columns between these two.
      lines: The line of the file that each word stands in, from 1.
      document: The number of the document in its file, from 0.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    between: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]
    document: int

    def __len__(self) -> int:
        return len(self.words)


def read(path: str | pathlib.Path, scheme: str = "auto") -> list[Sentence]:
    """Reads a file of tagged words, whose tags become IOB2.

    Args:
      path: The file.
      scheme: How it marks where entities begin: `iob1` (B only between two of one type), `iob2`
        (always B), `bioes`, or `auto`, which finds out. With `as-it-is` any sequence of tags will
        do, and stays as it is written.

    Raises:
      UserError: a line is not what it should be, or the file holds no sentence.
    """
    if scheme not in SCHEMES:
        raise UserError(f"no scheme {scheme!r} of tags: {nearest(scheme, SCHEMES)}")
    sentences = _sentences(path)
    if not sentences:
        raise UserError(f"{path} holds no sentence: expected a word and its tag on each line")
    if scheme == AS_IT_IS:
        return sentences
    found = scheme_of(path, sentences) if scheme == "auto" else scheme
    for sentence in sentences:
        _refuse_other_schemes(path, sentence, found)
    return [dataclasses.replace(each, tags=iob2(each.tags)) for each in sentences]


def scheme_of(path: str | pathlib.Path, sentences: Iterable[Sentence]) -> str:
    """Which scheme tags are written in; `iob2` where nothing tells it from `iob1`.

    Raises:
      UserError: a line speaks for one and another line for the other.
    """
    first_of: dict[str, int] = {}
    for sentence in sentences:
        for line, before, tag in _with_tag_before(sentence):
            if split_tag(tag)[0] in ("E", "S"):
                return "bioes"
            if (speaks_for := _speaks_for(before, tag)) is not None:
                first_of.setdefault(speaks_for, line)
    if len(first_of) == 2:
        raise UserError(
            f"{path}:{first_of['iob1']}: an entity begins with I, and with B at line "
            f"{first_of['iob2']} where IOB1 has I: expected IOB1 or IOB2; fix the tags"
        )
    return next(iter(first_of), "iob2")


def is_tag(text: str) -> bool:
    """Whether this is O, or a mark, a hyphen and a type."""
    return _TAG.fullmatch(text) is not None


def iob2(tags: Sequence[str]) -> tuple[str, ...]:
    """The same entities with B at the beginning of each, and I behind it."""
    written = [OUTSIDE] * len(tags)
    for kind, begin, end in extract_entities(tags):
        written[begin:end] = [f"B-{kind}", *[f"I-{kind}"] * (end - begin - 1)]
    return tuple(written)


def tag_names(sentences: Iterable[Sentence]) -> tuple[str, ...]:
    """All tags that the types of these sentences make in IOB2: O, then B and I of each type."""
    kinds = {split_tag(tag)[1] for sentence in sentences for tag in sentence.tags} - {""}
    return OUTSIDE, *(f"{mark}-{kind}" for kind in sorted(kinds) for mark in "BI")


def check_tags(
    path: str | pathlib.Path, sentences: Iterable[Sentence], known: Sequence[str]
) -> None:
    """Refuses sentences of `path` that have a tag which is not among those of training.

    Raises:
      UserError: it names the first such line.
    """
    allowed = frozenset(known)
    for sentence in sentences:
        for line, tag in zip(sentence.lines, sentence.tags, strict=True):
            if tag not in allowed:
                raise UserError(
                    f"{path}:{line}: tag {tag!r} does not occur in the training data, which has "
                    f"{', '.join(known)}; fix the tag or add such sentences to training"
                )


def write(
    path: str | pathlib.Path, sentences: Sequence[Sentence], predictions: Sequence[Sequence[str]]
) -> None:
    """Writes all columns and the predicted tag behind them, which is what `conlleval` reads.

    Lines that begin a document are left out: the script would count them as words.

    Raises:
      UserError: the file cannot be written.
    """
    blocks = []
    for sentence, tags in zip(sentences, predictions, strict=True):
        columns = sentence.words, sentence.between, sentence.tags, tags
        rows = zip(*columns, strict=True)
        blocks.append(
            "\n".join(" ".join((word, *more, tag, mine)) for word, more, tag, mine in rows)
        )
    io_files.write_output(pathlib.Path(path), "\n\n".join([*blocks, ""]))


def _sentences(path: str | pathlib.Path) -> list[Sentence]:
    sentences, rows, document, begun = [], [], 0, False

    def close() -> None:
        if rows:
            numbers, fields = zip(*rows, strict=True)
            words, between, tags = zip(
                *((f[0], tuple(f[1:-1]), f[-1]) for f in fields), strict=True
            )
            sentences.append(Sentence(words, tags, between, numbers, document))
            rows.clear()

    for number, (where, line) in enumerate(read_text_lines(str(path)), start=1):
        fields = _GAP.split(line.strip(" \t"))
        if fields == [""]:
            close()
        elif fields[0] == DOCUMENT:
            close()
            document += begun
            begun = True
        else:
            rows.append((number, _checked(where, fields)))
            begun = True
    close()
    return sentences


def _checked(where: str, fields: list[str]) -> list[str]:
    if len(fields) == 1:
        raise UserError(
            f"{where}: {fields[0]!r} stands alone: expected a word first and its tag last, "
            f"parted by "
            "spaces or tabs"
        )
    if not is_tag(fields[-1]):
        raise UserError(
            f"{where}: the last column is {fields[-1]!r}: expected a tag, which is O, or B-TYPE or "
            "I-TYPE with a type such as PER"
        )
    return fields


def _with_tag_before(sentence: Sentence) -> Iterable[tuple[int, str, str]]:
    """(line, the tag of the word before, tag) of every word."""
    return zip(sentence.lines, (OUTSIDE, *sentence.tags), sentence.tags, strict=False)


def _speaks_for(before: str, tag: str) -> str | None:
    """The one of IOB1 and IOB2 in which alone a tag can stand behind another."""
    mark, kind = split_tag(tag)
    if mark == "I":
        return "iob1" if starts_entity(before, tag) else None
    if mark == "B":
        return "iob2" if before == OUTSIDE or split_tag(before)[1] != kind else None
    return None


def _refuse_other_schemes(path: str | pathlib.Path, sentence: Sentence, scheme: str) -> None:
    for line, before, tag in _with_tag_before(sentence):
        wrong = split_tag(tag)[0] in ("E", "S") or _speaks_for(before, tag) not in (None, scheme)
        if scheme != "bioes" and wrong:
            raise UserError(
                f"{path}:{line}: {tag!r} behind {before!r} is not {scheme.upper()}; fix the tag, "
                "or name another scheme"
            )
