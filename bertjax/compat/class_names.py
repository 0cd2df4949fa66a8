"""Names of a classifier's outputs in a `config.json` of Hugging Face: `id2label` and `label2id`."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.errors import UserError

_FIX = "fix config.json, or state the names with --labels"


def read(hf_config: Mapping[str, Any], num_outputs: int) -> tuple[str, ...]:
    """Reads the names of the outputs in their order.

    Args:
      hf_config: The `config.json`.
      num_outputs: Of the classifier.

    Returns:
      A name for each output; none where `id2label` is absent or holds only the placeholders that
      transformers fills in: LABEL_0, LABEL_1 and so on.

    Raises:
      UserError: the names do not fit the outputs, or contradict `label2id` or `num_labels`.
    """
    if hf_config.get("num_labels", num_outputs) != num_outputs:
        raise UserError(
            f"num_labels of config.json: got {hf_config['num_labels']!r}, expected {num_outputs}, "
            f"the number of the classifier's outputs; {_FIX}"
        )
    id2label = hf_config.get("id2label")
    if id2label is None:
        return ()
    numbers = [str(number) for number in range(num_outputs)]
    given = {str(key): str(name) for key, name in _items(hf_config, "id2label")}
    if given.keys() != set(numbers):
        raise UserError(
            f"id2label of config.json: got {id2label}, expected a name for each of the "
            f"classifier's {num_outputs} outputs, numbered from 0; {_FIX}"
        )
    names = tuple(given[number] for number in numbers)
    _check_label2id(hf_config, names)
    return () if names == placeholders(num_outputs) else names


def placeholders(num_outputs: int) -> tuple[str, ...]:
    """The names that transformers gives to outputs that have none."""
    return tuple(f"LABEL_{number}" for number in range(num_outputs))


def _check_label2id(hf_config: Mapping[str, Any], names: Sequence[str]) -> None:
    """Compares the names that both tables have: `label2id` often keeps placeholders besides."""
    numbered = {(name, str(number)) for number, name in enumerate(names)}
    for name, number in _items(hf_config, "label2id"):
        if name in names and (name, str(number)) not in numbered:
            raise UserError(
                f"label2id of config.json: got {name}={number!r}, expected {names.index(name)} as "
                f"in id2label; {_FIX}"
            )


def _items(hf_config: Mapping[str, Any], field: str) -> list[tuple[str, Any]]:
    table = hf_config.get(field) or {}
    if not isinstance(table, Mapping):
        raise UserError(f"{field} of config.json: got {table!r}, expected an object; {_FIX}")
    return list(table.items())
