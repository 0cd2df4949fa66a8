"""The text of a dataset that TensorFlow Datasets prepared, read without TensorFlow.

Datasets are found by their files, never by their code: code may want TensorFlow, and datasets of
one's own are read like the public ones. They have to be prepared with `file_format="array_record"`.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from bertjax.errors import UserError, nearest

_BATCH = 256


def texts(source: str, *, data_dir: str | None = None, feature: str = "") -> Iterator[bytes]:
    """Yields the text of each example of `tfds:NAME:SPLIT`.

    NAME may have a config and a version (`wikipedia/20220620.en:1.0.0`), SPLIT may be a slice
    (`train[:10%]`). The text is the feature `text`; where there is none it is all string features,
    in the order of their names, each on a line of its own.

    Args:
      source: What a person wrote.
      data_dir: Where datasets lie prepared; `~/tensorflow_datasets` unless told.
      feature: The string feature that holds the text, instead of these.

    Raises:
      UserError: the name cannot be read, or there is no such dataset, split or text.
    """
    builder, split = _open(source, data_dir)
    keys = _text_features(source, builder.info.features, feature)
    for example in _in_batches(_examples(source, builder, split)):
        yield b"\n".join(example[key] for key in keys)


def pairs(source: str, *, data_dir: str | None = None) -> Iterator[bytes]:
    """Yields source and target of each example of `tfds:NAME:SPLIT`, as `texts` yields text.

    They are what the dataset is supervised with, in this order, or its two string features.

    Raises:
      UserError: there is no such dataset or split, or it has no pairs.
    """
    builder, split = _open(source, data_dir)
    strings = _string_features(builder.info.features)
    keys = builder.info.supervised_keys or strings
    if len(keys) != 2 or not set(keys) <= set(strings):
        raise UserError(
            f"{source} has no pairs: wanted two string features, it has {', '.join(strings)}"
        )
    for example in _in_batches(_examples(source, builder, split)):
        yield b"\n".join(b" ".join(example[key].splitlines()) for key in keys)


def _open(source: str, data_dir: str | None) -> tuple[Any, str]:
    """The dataset that `tfds:NAME:SPLIT` names, and the split."""
    parts = re.fullmatch(r"tfds:([\w./-]+(?::[\d.*]+)?):(.+)", source)
    if not parts:
        raise UserError(f"{source!r} is not tfds:NAME:SPLIT; write, for example, tfds:lm1b:train")
    name, split = parts.groups()
    return _builder(source, name, data_dir), split


def _in_batches(examples: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """All examples, read some at a time."""
    for start in range(0, len(examples), _BATCH):
        numbers = list(range(start, min(start + _BATCH, len(examples))))
        yield from examples.__getitems__(numbers)


def _builder(source: str, name: str, data_dir: str | None) -> Any:
    try:
        from tensorflow_datasets.core import read_only_builder
    except ImportError as error:
        raise UserError(
            f"{source} needs the package tensorflow-datasets ({error}); pip install it"
        ) from None
    try:
        return read_only_builder.builder_from_files(name, data_dir=data_dir)
    except Exception as error:  # TFDS raises many kinds, each over many lines
        where = data_dir or "~/tensorflow_datasets"
        raise UserError(
            f"no prepared dataset {name!r} in {where} ({str(error).splitlines()[0]}); "
            "give its folder with --tfds_data_dir, and its config as NAME/CONFIG"
        ) from error


def _examples(source: str, builder: Any, split: str) -> Sequence[dict[str, Any]]:
    known = list(builder.info.splits)
    if split.partition("[")[0] not in [*known, "all"]:
        raise UserError(f"{source} has no split {split!r}: {nearest(split, known)}")
    try:
        return builder.as_data_source(split)
    except NotImplementedError:
        raise UserError(
            f"{source} is stored as {builder.info.file_format.value}; prepare it again with "
            'file_format="array_record", which is read without TensorFlow'
        ) from None
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{source} cannot be read: {reason}; check the split {split!r}") from error


def _text_features(source: str, features: Any, feature: str) -> list[str]:
    strings = _string_features(features)
    if not strings:
        raise UserError(f"{source} has no text: its features are {', '.join(sorted(features))}")
    if feature and feature not in strings:
        raise UserError(
            f"{source} has no string feature {feature!r}, it has {', '.join(strings)}; choose one "
            "with --text_field (in a config: data.text_field)"
        )
    if feature:
        return [feature]
    return ["text"] if "text" in strings else strings


def _string_features(features: Any) -> list[str]:
    return sorted(key for key, feature in features.items() if type(feature).__name__ == "Text")
