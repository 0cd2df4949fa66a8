"""Read and write the column format of the CoNLL shared tasks: one word per line, its tag last.

A `-DOCSTART-` line begins a document and is not a word; a file without one is a single document.
Columns are separated by spaces or tabs, with any number of columns between word and tag.
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
"""The scheme that accepts any sequence of tags and converts none."""
SCHEMES = ("auto", "iob1", "iob2", "bioes", AS_IT_IS)

_TAG = re.compile(r"O|[BIES]-\S+")
_GAP = re.compile(r"[ \t]+")  # other white space may be part of a word


@dataclasses.dataclass(frozen=True)
class Sentence:
    """A tagged sentence.

    Attributes:
      words: The first column.
      tags: The last column.
      between: The columns between these two, per word.
      locations: File and line of each word, for error messages.
      document: Index of the document in the file, from 0.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    between: tuple[tuple[str, ...], ...]
    locations: tuple[str, ...]
    document: int

    def __len__(self) -> int:
        return len(self.words)


def read(path: str | pathlib.Path, scheme: str = "auto") -> list[Sentence]:
    """Reads a file of tagged sentences and converts the tags to IOB2.

    Args:
      path: The file.
      scheme: The tagging scheme: `iob1` (B only between adjacent entities of one type), `iob2` (B
        at the start of every entity), `bioes`, or `auto` to detect it. `as-it-is` accepts any
        sequence of tags and converts none.

    Raises:
      UserError: the file has no sentence, or a line is malformed or violates the scheme.
    """
    if scheme not in SCHEMES:
        raise UserError(f"unknown tagging scheme {scheme!r}: {nearest(scheme, SCHEMES)}")
    sentences = _sentences(path)
    if not sentences:
        raise UserError(f"{path} has no sentence: expected a word and its tag per line")
    return sentences if scheme == AS_IT_IS else with_iob2(sentences, scheme)


def with_iob2(sentences: Sequence[Sentence], scheme: str = "auto") -> list[Sentence]:
    """Converts the tags of sentences to IOB2; see `read`.

    Raises:
      UserError: a tag violates the scheme.
    """
    found = detect_scheme(sentences) if scheme == "auto" else scheme
    for sentence in sentences:
        _refuse_other_schemes(sentence, found)
    return [dataclasses.replace(each, tags=to_iob2(each.tags)) for each in sentences]


def detect_scheme(sentences: Iterable[Sentence]) -> str:
    """Detects the tagging scheme: `iob1`, `iob2` or `bioes`; `iob2` if the tags fit IOB1 too.

    Raises:
      UserError: one line is only valid in IOB1 and another only in IOB2.
    """
    first_of: dict[str, str] = {}
    for sentence in sentences:
        for where, before, tag in _with_tag_before(sentence):
            if split_tag(tag)[0] in ("E", "S"):
                return "bioes"
            if (only_in := _only_scheme(before, tag)) is not None:
                first_of.setdefault(only_in, where)
    if len(first_of) == 2:
        raise UserError(
            f"{first_of['iob1']}: an entity starts with I (IOB1), but at {first_of['iob2']} with "
            "a B that only IOB2 has; expected one scheme: fix the tags"
        )
    return next(iter(first_of), "iob2")


def is_tag(text: str) -> bool:
    """Returns whether a text is O, or one of B, I, E, S followed by a hyphen and a type."""
    return _TAG.fullmatch(text) is not None


def to_iob2(tags: Sequence[str]) -> tuple[str, ...]:
    """Converts the tags of a sentence to IOB2: B at the start of every entity, I in the rest."""
    written = [OUTSIDE] * len(tags)
    for kind, begin, end in extract_entities(tags):
        written[begin:end] = [f"B-{kind}", *[f"I-{kind}"] * (end - begin - 1)]
    return tuple(written)


def tag_names(sentences: Iterable[Sentence]) -> tuple[str, ...]:
    """Returns the IOB2 tags of all entity types of these sentences: O, then B and I per type."""
    kinds = {split_tag(tag)[1] for sentence in sentences for tag in sentence.tags} - {""}
    return OUTSIDE, *(f"{mark}-{kind}" for kind in sorted(kinds) for mark in "BI")


def check_tags(sentences: Iterable[Sentence], known: Sequence[str]) -> None:
    """Checks that every tag of these sentences is known.

    Args:
      sentences: The sentences of an evaluation split.
      known: The tags of the training split.

    Raises:
      UserError: a tag does not occur in the training split; names the first line.
    """
    allowed = frozenset(known)
    for sentence in sentences:
        for where, tag in zip(sentence.locations, sentence.tags, strict=True):
            if tag not in allowed:
                raise UserError(
                    f"{where}: tag: got {tag!r}, expected a tag of the training data "
                    f"({', '.join(known)}); fix the tag or add such sentences to the training data"
                )


def write(
    path: str | pathlib.Path, sentences: Sequence[Sentence], predictions: Sequence[Sequence[str]]
) -> None:
    """Writes all columns and the predicted tag as the last column, the input of `conlleval`.

    -DOCSTART- lines are omitted: the script would count them as words.

    Args:
      path: The file to write.
      sentences: The sentences, with reference tags.
      predictions: The predicted tags of each sentence.

    Raises:
      UserError: the file cannot be written.
    """
    blocks = []
    for sentence, tags in zip(sentences, predictions, strict=True):
        columns = sentence.words, sentence.between, sentence.tags, tags
        rows = zip(*columns, strict=True)
        blocks.append(
            "\n".join(" ".join((word, *more, tag, found)) for word, more, tag, found in rows)
        )
    io_files.write_output(pathlib.Path(path), "\n\n".join([*blocks, ""]))


def _sentences(path: str | pathlib.Path) -> list[Sentence]:
    sentences, rows, document, in_document = [], [], 0, False

    def close() -> None:
        if rows:
            locations, fields = zip(*rows, strict=True)
            words, between, tags = zip(
                *((f[0], tuple(f[1:-1]), f[-1]) for f in fields), strict=True
            )
            sentences.append(Sentence(words, tags, between, locations, document))
            rows.clear()

    for where, line in read_text_lines(str(path)):
        fields = _GAP.split(line.strip(" \t"))
        if fields == [""]:
            close()
        elif fields[0] == DOCUMENT:
            close()
            document += in_document
            in_document = True
        else:
            rows.append((where, _check_fields(where, fields)))
            in_document = True
    close()
    return sentences


def _check_fields(where: str, fields: list[str]) -> list[str]:
    if len(fields) == 1:
        raise UserError(
            f"{where}: got {fields[0]!r} alone, expected a word first and its tag last, separated "
            "by spaces or tabs"
        )
    if not is_tag(fields[-1]):
        raise UserError(
            f"{where}: last column: got {fields[-1]!r}, expected a tag: O, or B-TYPE or I-TYPE "
            "with a type such as PER"
        )
    return fields


def _with_tag_before(sentence: Sentence) -> Iterable[tuple[str, str, str]]:
    """Returns (location, previous tag, tag) of every word."""
    return zip(sentence.locations, (OUTSIDE, *sentence.tags), sentence.tags, strict=False)


def _only_scheme(before: str, tag: str) -> str | None:
    """Returns the scheme if `tag` can follow `before` only in IOB1 or only in IOB2, else None."""
    mark, kind = split_tag(tag)
    if mark == "I":
        return "iob1" if starts_entity(before, tag) else None
    if mark == "B":
        return "iob2" if before == OUTSIDE or split_tag(before)[1] != kind else None
    return None


def _refuse_other_schemes(sentence: Sentence, scheme: str) -> None:
    for where, before, tag in _with_tag_before(sentence):
        wrong = split_tag(tag)[0] in ("E", "S") or _only_scheme(before, tag) not in (None, scheme)
        if scheme != "bioes" and wrong:
            raise UserError(
                f"{where}: {tag!r} after {before!r} is invalid in {scheme.upper()}; fix the "
                "tag, or set another scheme"
            )
