"""Find the files of each split, read their tables, and choose the columns of texts and labels."""

import dataclasses
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.corpus.format import Table, all_formats
from bertjax.corpus.formats import arrow
from bertjax.corpus.text import detect_format
from bertjax.errors import UserError
from bertjax.io.file_kinds import detect_by_name

SPLITS = {
    "train": ("train", "training"),
    "dev": ("dev", "validation", "valid", "val"),
    "test": ("test",),
}
"""Names of files, without endings, and of folders of `datasets`, of each split."""

PAIR_COLUMNS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("text", "text_pair"),
)
TEXT_COLUMNS = (
    "text",
    "sentence",
    "review",
    "comment",
    "content",
    "utterance",
    "question",
    "query",
)
LABEL_COLUMNS = (
    *("label", "labels", "category", "categories", "class", "intent", "sentiment", "topic"),
    *("target", "score", "rating", "stars"),
)
"""Common names of columns, compared without regard to case; the first that exists is chosen."""

_EXPECTED = ".csv, .tsv, .jsonl, .parquet or .arrow, the first three also compressed"
_SHARD = re.compile(r"-\d+-of-\d+$")
_MAX_LISTED = 12


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns of a task.

    Attributes:
      texts: Columns of the one or two texts.
      label: Column of the label.
    """

    texts: tuple[str, ...]
    label: str


def find_splits(data: str) -> dict[str, list[str]]:
    """Finds the files of each split.

    Args:
      data: A file, or a folder with train.csv, validation.parquet, test-00000-of-00002.parquet ...;
        or a folder of `save_to_disk` of `datasets`; or one whose folder `data/` has these, as on
        the Hugging Face Hub. A single file or data set is "train".

    Raises:
      UserError: there is no training file, or a split has several that do not belong together.
    """
    path = pathlib.Path(data)
    if path.is_file():
        return {"train": [data]}
    if not path.is_dir():
        raise UserError(f"no file or folder {data}: --data expects a table, or a folder of tables")
    # A data set with several splits has a folder for each, which is found below.
    if not (path / "dataset_dict.json").is_file() and (saved := arrow.list_files(data)):
        return {"train": saved}
    entries = sorted(each for each in path.iterdir() if not each.name.startswith("."))
    found = {}
    for split, names in SPLITS.items():
        own = [each for each in entries if _stem(each) in names and _is_table(each)]
        if own:
            found[split] = _of_split(split, own)
    if not found and (path / "data").is_dir():
        return find_splits(str(path / "data"))
    if "train" not in found:
        listed = ", ".join(each.name for each in entries[:_MAX_LISTED]) or "nothing"
        raise UserError(
            f"no training file in {data}: got {listed}, expected train with the ending "
            f"{_EXPECTED}; rename it, or pass a file with --data"
        )
    return found


def _stem(path: pathlib.Path) -> str:
    return _SHARD.sub("", path.name.partition(".")[0].lower())


def _is_table(path: pathlib.Path) -> bool:
    if path.is_dir():
        return (path / "state.json").is_file()
    kinds = {kind for each in all_formats().values() if each.read_table for kind in each.kinds}
    return detect_by_name(str(path)) in kinds


def _of_split(split: str, entries: Sequence[pathlib.Path]) -> list[str]:
    if len(entries) == 1 and entries[0].is_dir():
        return arrow.list_files(str(entries[0])) or []
    is_sharded = all(_SHARD.search(each.name.partition(".")[0]) for each in entries)
    if len(entries) > 1 and not is_sharded:
        raise UserError(
            f"{entries[0].parent}: got {len(entries)} files for the {split} split "
            f"({', '.join(each.name for each in entries[:_MAX_LISTED])}), expected one; remove or "
            "rename the others"
        )
    return [str(each) for each in entries]


def read_tables(paths: Sequence[str]) -> Table:
    """Reads the tables of a split as one.

    Raises:
      UserError: a file is not a table, has no rows or is malformed, or their columns differ.
    """
    tables = [_read_table(path) for path in paths]
    first = tables[0]
    for table in tables:
        if table.columns.keys() != first.columns.keys():
            raise UserError(
                f"{table.path}: got the columns {', '.join(table.columns)}, expected those of "
                f"{first.path}: {', '.join(first.columns)}"
            )
    columns = {name: [v for table in tables for v in table.columns[name]] for name in first.columns}
    locations = [location for table in tables for location in table.locations]
    return dataclasses.replace(first, columns=columns, locations=locations)


def _read_table(path: str) -> Table:
    name = detect_format(path, is_table=True)
    reader = all_formats()[name].read_table
    if reader is None:
        raise UserError(
            f"{path}: got a file of format {name}, expected a table with the ending {_EXPECTED}; "
            "convert or rename it"
        )
    table = reader(path)
    if not table.locations:
        raise UserError(f"{path} has no rows: expected at least one")
    return table


def choose_columns(table: Table, fields: Mapping[str, Any]) -> Columns:
    """Chooses the columns of texts and label: those of the config, or with common names.

    Args:
      table: The training examples.
      fields: `config.data` with `text`, `text_pair` and `label`; "" where it is open.

    Raises:
      UserError: a column is missing, or none has a common name.
    """
    texts, label = choose_texts(table, fields), fields["label"]
    if not label:
        open_names = [name for name in table.columns if name not in texts]
        common = find_columns(table, LABEL_COLUMNS, texts)
        label = (common or (open_names if len(open_names) == 1 else [""]))[0]
    if not label:
        raise UserError(f"{_unknown(table, 'labels')}; choose one with --label COLUMN")
    columns = Columns(texts, label)
    check_column(table, label, "label")
    if label in texts or len(set(texts)) < len(texts):
        raise UserError(
            f"--text, --text_pair and --label: got {', '.join((*texts, label))}, expected "
            "different columns"
        )
    return columns


def choose_texts(
    table: Table,
    fields: Mapping[str, Any],
    pair_columns: Sequence[tuple[str, str]] = PAIR_COLUMNS,
) -> tuple[str, ...]:
    """Chooses the columns of one or two texts: those of the config, or with common names.

    Args:
      table: The examples.
      fields: `config.data` with `text`, `text_pair` and `label`; "" where it is open.
      pair_columns: Common names of two columns, which are preferred to one.

    Raises:
      UserError: a column is missing, or none has a common name.
    """
    text, pair, label = fields["text"], fields["text_pair"], fields["label"]
    if not text and not pair:
        pairs = [found for names in pair_columns if len(found := find_columns(table, names)) == 2]
        single = find_columns(table, TEXT_COLUMNS, (label,))
        text, pair = pairs[0] if pairs else ((single or [""])[0], "")
    if not text:
        raise UserError(f"{_unknown(table, 'texts')}; choose one with --text COLUMN")
    texts = (text, pair) if pair else (text,)
    for option, name in zip(("text", "text_pair"), texts, strict=False):
        check_column(table, name, option)
    return texts


def find_columns(table: Table, names: Sequence[str], excluded: Sequence[str] = ()) -> list[str]:
    """Returns the columns with these names, in this order, without regard to case."""
    by_name = {name.lower(): name for name in reversed(table.columns)}
    return [by_name[name] for name in names if name in by_name and by_name[name] not in excluded]


def check_column(table: Table, name: str, option: str) -> None:
    """Raises `UserError` if a table has no column of this name."""
    if name not in table.columns:
        raise UserError(
            f"{table.path} has no column {name!r}: got {_column_names(table)}; choose one with "
            f"--{option} COLUMN"
        )


def _unknown(table: Table, content: str) -> str:
    return f"{table.path}: cannot detect the column of the {content} among {_column_names(table)}"


def _column_names(table: Table) -> str:
    names = list(table.columns)
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f"{', '.join(names[:_MAX_LISTED])}{more}"


def read_texts(table: Table, columns: Columns) -> tuple[list[str], ...]:
    """Returns the texts of every row.

    Raises:
      UserError: a column is missing, or a text is, or is a list, an object or binary.
    """
    for option, name in zip(("text", "text_pair"), columns.texts, strict=False):
        check_column(table, name, option)
    return tuple(
        [
            _text(value, location, name)
            for value, location in zip(table.columns[name], table.locations, strict=True)
        ]
        for name in columns.texts
    )


def _text(value: Any, location: str, column: str) -> str:
    if isinstance(value, list | dict):
        kind = "lists" if isinstance(value, list) else "objects"
        raise UserError(
            f"{location}: column {column!r} has {kind}, expected texts; choose another column, or "
            "for lists of words with a tag each --config task:tags"
        )
    if isinstance(value, bytes):
        raise UserError(
            f"{location}: column {column!r} has bytes that are not UTF-8, expected texts; decode "
            "them, or choose another column"
        )
    text = "" if value is None else str(value).strip()
    if not text:
        raise UserError(f"{location}: column {column!r} is empty, expected a text; remove the row")
    return text
