"""Read text from prepared TensorFlow datasets (`tfds:NAME:SPLIT`), without TensorFlow.

A dataset is read from its files, never built by its code, and must have been prepared with
`file_format="array_record"`.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from bertjax.errors import UserError, nearest

_EXAMPLES_PER_READ = 256


def read_texts(source: str, *, data_dir: str | None = None, feature: str = "") -> Iterator[bytes]:
    """Yield the text of each example of a dataset, in UTF-8.

    Args:
      source: `tfds:NAME:SPLIT`. NAME may include a config and a version
        (`wikipedia/20220620.en:1.0.0`), SPLIT may be a slice (`train[:10%]`).
      data_dir: The folder of prepared datasets; `~/tensorflow_datasets` by default.
      feature: The string feature that contains the text. By default it is `text`; if there is no
        such feature, all string features in the order of their names, each on its own line.

    Raises:
      UserError: `source` is malformed, or there is no such dataset, split or string feature.
    """
    builder, split = _open(source, data_dir)
    keys = _text_features(source, builder.info.features, feature)
    for example in _read_in_batches(_open_split(source, builder, split)):
        yield b"\n".join(example[key] for key in keys)


def read_pairs(source: str, *, data_dir: str | None = None) -> Iterator[bytes]:
    """Yield source and target of each example of a dataset, each on a separate line, in UTF-8.

    They are the dataset's `supervised_keys`, or else its two string features. For the arguments see
    `read_texts`.

    Raises:
      UserError: There is no such dataset or split, or it has no pairs.
    """
    builder, split = _open(source, data_dir)
    strings = _string_features(builder.info.features)
    keys = builder.info.supervised_keys or strings
    if len(keys) != 2 or not set(keys) <= set(strings):
        raise UserError(
            f"{source} has no pairs: got the string features {', '.join(strings) or 'none'}, "
            "expected two"
        )
    for example in _read_in_batches(_open_split(source, builder, split)):
        yield b"\n".join(b" ".join(example[key].splitlines()) for key in keys)


def _open(source: str, data_dir: str | None) -> tuple[Any, str]:
    """Parse `tfds:NAME:SPLIT`; return the dataset's builder and the split."""
    parts = re.fullmatch(r"tfds:([\w./-]+(?::[\d.*]+)?):(.+)", source)
    if not parts:
        raise UserError(f"got {source!r}, expected tfds:NAME:SPLIT, for example tfds:lm1b:train")
    name, split = parts.groups()
    return _builder(source, name, data_dir), split


def _read_in_batches(examples: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield all examples; reading many per call is faster."""
    for start in range(0, len(examples), _EXAMPLES_PER_READ):
        numbers = list(range(start, min(start + _EXAMPLES_PER_READ, len(examples))))
        yield from examples.__getitems__(numbers)


def _builder(source: str, name: str, data_dir: str | None) -> Any:
    try:
        from tensorflow_datasets.core import read_only_builder
    except ImportError as error:
        raise UserError(
            f"{source} requires tensorflow-datasets ({error}); pip install tensorflow-datasets"
        ) from None
    try:
        return read_only_builder.builder_from_files(name, data_dir=data_dir)
    except Exception as error:  # TFDS raises many types of errors, with long messages
        where = data_dir or "~/tensorflow_datasets"
        raise UserError(
            f"no prepared dataset {name!r} in {where} ({str(error).splitlines()[0]}); "
            "give the folder with --tfds_data_dir, and a config as NAME/CONFIG"
        ) from error


def _open_split(source: str, builder: Any, split: str) -> Sequence[dict[str, Any]]:
    known = list(builder.info.splits)
    if split.partition("[")[0] not in [*known, "all"]:
        raise UserError(f"{source} has no split {split!r}: {nearest(split, known)}")
    try:
        return builder.as_data_source(split)
    except NotImplementedError:
        raise UserError(
            f"{source}: got file format {builder.info.file_format.value}, expected array_record, "
            'which is read without TensorFlow; prepare it with file_format="array_record"'
        ) from None
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"cannot read {source}: {reason}; check the split {split!r}") from error


def _text_features(source: str, features: Any, feature: str) -> list[str]:
    strings = _string_features(features)
    if not strings:
        raise UserError(
            f"{source} has no text: got the features {', '.join(sorted(features))}, expected a "
            "string feature"
        )
    if feature and feature not in strings:
        raise UserError(
            f"{source} has no string feature {feature!r}: got {', '.join(strings)}; choose one "
            "with --text_field (in a config: data.text_field)"
        )
    if feature:
        return [feature]
    return ["text"] if "text" in strings else strings


def _string_features(features: Any) -> list[str]:
    return sorted(key for key, feature in features.items() if type(feature).__name__ == "Text")
