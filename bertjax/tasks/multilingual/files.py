"""Read tab-separated files of several languages: one file each, or a column `language`.

Quotes are ordinary characters. Lines with the label `-`, on which the annotators of MultiNLI did
not agree, are left out.
"""

import dataclasses
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertjax.data.random import sample
from bertjax.errors import UserError
from bertjax.io.lines import read_text_lines
from bertjax.tasks.multilingual.table import LANGUAGE, MultilingualTask
from bertjax.tasks.sequence.examples import SequenceExamples

SPLITS = ("train", "dev", "test")

_COLUMN = "language"
_NO_AGREEMENT = "-"


class Row(NamedTuple):
    """One line of a file: its location, language, texts and spelling of the class."""

    where: str
    language: str
    texts: tuple[str, ...]
    label: str


@dataclasses.dataclass(frozen=True)
class MultilingualExamples:
    """The examples of a split and their languages, in the order of the files."""

    examples: SequenceExamples
    languages: Sequence[str]

    def __len__(self) -> int:
        return len(self.examples)

    def sample(self, size: int, seed: int) -> "MultilingualExamples":
        """Returns `size` random examples of all languages, sampled without replacement."""
        kept = sample(len(self), size, seed)
        languages = [self.languages[number] for number in kept]
        return MultilingualExamples(self.examples.take(kept), languages)


def read(
    data: str, task: MultilingualTask, fields: Mapping[str, Any]
) -> tuple[dict[str, MultilingualExamples], tuple[str, ...]]:
    """Reads the available splits, by name.

    Args:
      data: The folder to which the file names are relative.
      task: The benchmark.
      fields: `config.data`; see `dataset.DataFields`.

    Returns:
      The splits, and the names of the classes.

    Raises:
      UserError: a file of train or dev, or a language, is missing; or a line is malformed.
    """
    rows: dict[str, list[Row]] = {}
    for split in SPLITS:
        languages = fields["train_languages" if split == "train" else "eval_languages"]
        paths = _find_files(data, split, fields[f"{split}_file"], languages)
        if paths:
            rows[split] = [row for path in paths for row in _read_file(path, task)]
            _check_languages(split, rows[split], languages, fields[f"{split}_file"])
    labels = task.labels or tuple(sorted({row.label for row in rows["train"]}))
    if len(labels) < 2:
        raise UserError(
            f"{rows['train'][0].where}: got only the class {labels[0]!r} in the training files, "
            "expected two or more"
        )
    return {split: _examples(some, labels) for split, some in rows.items()}, labels


def read_references(
    path: str, task: MultilingualTask
) -> tuple[MultilingualExamples, tuple[str, ...]]:
    """Reads the examples of a labelled file, and the names of the classes.

    Args:
      path: A file with a column `language`, or a pattern with `{language}` for a file of each.
      task: The benchmark.

    Raises:
      UserError: there is no such file, or a line is malformed.
    """
    folder, pattern = pathlib.Path(path).parent, pathlib.Path(path).name
    paths = [_File(folder / pattern, "", ())]
    if LANGUAGE in pattern:
        known = _languages_of_files(folder, pattern)
        paths = [_File(folder / pattern.replace(LANGUAGE, name), name, ()) for name in known]
    if not paths or not paths[0].path.is_file():
        raise UserError(
            f"no file {path}: expected a labelled file of {task.name} with a column {_COLUMN}, or "
            f"a name with {LANGUAGE} for a file of each language"
        )
    rows = [row for each in paths for row in _read_file(each, task)]
    _check_languages("dev", rows, (), path)
    labels = task.labels or tuple(sorted({row.label for row in rows}))
    return _examples(rows, labels), labels


class _File(NamedTuple):
    """A file of one language, or of several with a column that names them.

    Attributes:
      path: The file.
      language: Its language; "" for a file of several.
      selected: The languages that are read from a file of several; empty for all.
    """

    path: pathlib.Path
    language: str
    selected: tuple[str, ...]


def _find_files(data: str, split: str, pattern: str, languages: Sequence[str]) -> list[_File]:
    folder = pathlib.Path(data)
    if LANGUAGE not in pattern:
        files = [_File(folder / pattern, "", tuple(languages))]
    else:
        known = languages or _languages_of_files(folder, pattern)
        files = [_File(folder / pattern.replace(LANGUAGE, name), name, ()) for name in known]
    missing = [str(file.path) for file in files if not file.path.is_file()]
    if split == "test" and len(missing) == len(files):
        return []
    if missing or not files:
        raise UserError(
            f"no file {missing[0] if missing else folder / pattern}: --data expects the folder of "
            f"{pattern}; set --config.data.{split}_file for another name"
        )
    return files


def _languages_of_files(folder: pathlib.Path, pattern: str) -> list[str]:
    before, _, after = (folder / pattern).as_posix().partition(LANGUAGE)
    expression = re.compile(re.escape(before) + r"([^/]+)" + re.escape(after))
    paths = (path.as_posix() for path in folder.glob(pattern.replace(LANGUAGE, "*")))
    return sorted(found[1] for path in paths if (found := expression.fullmatch(path)))


def _read_file(file: _File, task: MultilingualTask) -> Iterator[Row]:
    lines = ((where, line.split("\t")) for where, line in read_text_lines(str(file.path)) if line)
    columns, names = list(task.columns), []
    if task.headers:
        names = next(lines, ("", [""]))[1]
        columns = _columns(file.path, names, task)
    language_column = names.index(_COLUMN) if _COLUMN in names else None
    if language_column is not None:
        columns.append(language_column)
    elif not file.language and len(file.selected) != 1:
        raise UserError(
            f"{file.path} has no column {_COLUMN!r}: expected it in a file of several languages; "
            f"put {LANGUAGE} into the name, or choose one language"
        )
    for where, values in lines:
        if len(values) <= max(columns):
            raise UserError(
                f"{where}: got {len(values)} field(s), expected {1 + max(columns)} or more "
                "separated by tabs; fix or remove the line"
            )
        language = file.language or (file.selected[0] if file.selected else "")
        if language_column is not None:
            language = values[language_column]
        if file.selected and language not in file.selected:
            continue
        *texts, label = (values[column] for column in columns[: len(task.texts) + 1])
        yield Row(where, language, tuple(texts), task.synonyms.get(label, label))


def _columns(path: pathlib.Path, names: Sequence[str], task: MultilingualTask) -> list[int]:
    for header in task.headers:
        if set(header) <= set(names):
            return [names.index(name) for name in header]
    expected = " or ".join(", ".join(header) for header in task.headers)
    raise UserError(
        f"{path}:1: got the columns {', '.join(names)[:80]!r}, expected a header line with "
        f"{expected}"
    )


def _check_languages(
    split: str, rows: Sequence[Row], languages: Sequence[str], pattern: str
) -> None:
    found = {row.language for row in rows}
    for language in languages:
        if language not in found:
            raise UserError(
                f"config.data.{'train' if split == 'train' else 'eval'}_languages: got "
                f"{language!r}, for which {pattern} has no example; leave it out"
            )
    if not found:
        raise UserError(f"{pattern} has no examples: expected one per line")


def _examples(rows: Sequence[Row], labels: Sequence[str]) -> MultilingualExamples:
    known = {label: number for number, label in enumerate(labels)}
    kept = [row for row in rows if row.label != _NO_AGREEMENT]
    for row in kept:
        if row.label not in known:
            raise UserError(
                f"{row.where}: label: got {row.label[:60]!r}, expected one of {', '.join(labels)}; "
                "fix or remove the line"
            )
    languages = [row.language for row in kept]
    return MultilingualExamples(
        SequenceExamples(
            texts=tuple(map(list, zip(*(row.texts for row in kept), strict=True))),
            labels=np.array([known[row.label] for row in kept], np.int32),
            indices=_numbers(languages),
            left_out=tuple(row.where for row in rows if row.label == _NO_AGREEMENT),
        ),
        languages,
    )


def _numbers(languages: Sequence[str]) -> list[str]:
    """Returns the number of each example among those of its language, from 0."""
    counts: dict[str, int] = {}
    found = []
    for language in languages:
        found.append(str(counts.get(language, 0)))
        counts[language] = counts.get(language, 0) + 1
    return found
