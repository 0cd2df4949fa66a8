"""Resolve a pretrained run as the source of another one, verify it and load its encoder."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
from jaxtyping import PyTree

from bertjax import catalog
from bertjax.errors import UserError
from bertjax.io import storage
from bertjax.io.files import read_json
from bertjax.train.checkpoint import folder as checkpoint_folder
from bertjax.train.checkpoint import restore, trees

_MAX_ROWS = 8

_RELEASED_FIELDS = ("model_type", "vocab_size")
"""Fields of a `config.json` of transformers: one with remote code may lack a `model_type`."""

FRESH = "random:"
"""Before the name of a run: its model with fresh parameters."""


@dataclasses.dataclass(frozen=True)
class PretrainedSource:
    """A run, or one of its checkpoints, that another run is initialised from.

    Attributes:
      run: The folder of the run.
      checkpoint: The folder of one of its steps, or None for fresh parameters.
      config: The run's config, as plain values.
    """

    run: pathlib.Path
    checkpoint: pathlib.Path | None
    config: dict[str, Any]

    def description(self) -> dict[str, Any]:
        """Identifies the parameters, independently of the path of the run."""
        if self.checkpoint is None:
            return {"step": 0, "encoder": "random"}
        encoder = restore.load_weights(self.checkpoint, "encoder")
        return {"step": int(self.checkpoint.name), "encoder": trees.fingerprint(encoder)}


def resolve(name: str) -> PretrainedSource:
    """Resolves RUN, RUN@STEP, RUN@best or random:RUN to a checkpoint.

    RUN is the newest checkpoint in a run's folder, `RUN@best` the best by the run's own
    `best_metric`, `random:RUN` its model and tokenizer with fresh parameters. For a fine-tuning
    that keeps its checkpoints, RUN is the folder of one seed, `runs/mrpc/seed_0`, and the
    checkpoint is that of the epoch whose scores the seed reports.

    Raises:
      UserError: there is no such run or checkpoint, or it is damaged.
    """
    if name == "random":
        raise UserError(
            "got random without a run, expected random:RUN, an untrained model with the config and "
            "tokenizer of RUN; pass the folder of a run as RUN"
        )
    fresh = name.startswith(FRESH)
    path, _, selector = name.removeprefix(FRESH).partition("@")
    folder = storage.to_path(path)
    run = folder.parent if folder.name.startswith("seed_") else folder
    if not (run / "config.json").is_file():
        raise UserError(f"{run} is not a run: it has no config.json; pass the --workdir of a run")
    config = catalog.rename_fields(read_json(run / "config.json"))
    refuse_released(run, config)
    if "model" not in config:
        sections = ", ".join(config) or "nothing"
        raise UserError(
            f"{run} has no model: got a config.json with {sections}, expected one of a pretraining "
            "or fine-tuning; pass its --workdir"
        )
    checkpoint = None if fresh else _find_checkpoint(folder / "checkpoints", selector, config)
    return PretrainedSource(run, checkpoint, config)


def is_released(config: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is of a model saved by transformers, not of a run."""
    return "model" not in config and any(field in config for field in _RELEASED_FIELDS)


def refuse_released(run: pathlib.Path, config: Mapping[str, Any]) -> None:
    """Raises `UserError` if a folder has a model saved by transformers instead of a run."""
    if is_released(config):
        raise UserError(
            f"{run} is a model saved by transformers, not a run; convert it with `bertjax import "
            f"--model {run} --workdir RUN`"
        )


def _find_checkpoint(
    directory: pathlib.Path, selector: str, config: dict[str, Any]
) -> pathlib.Path:
    """The checkpoint of a selector: a step, "best", or "" for the default; checks its integrity."""
    steps = checkpoint_folder.steps(directory)
    if not steps and "task" in config:
        raise UserError(
            f"{directory} has no complete checkpoint: expected the folder of a seed, as in "
            "runs/mrpc/seed_0, of a fine-tuning with --config.keep_checkpoints=true"
        )
    if not steps:
        raise UserError(f"{directory} has no complete checkpoint: wait for the run's first one")
    if selector == "best":
        step = _best_step(directory, steps, config)
    elif selector:
        step = int(selector) if selector.isdecimal() and int(selector) in steps else None
    else:
        step = _default_step(directory, steps)
    if step is None:
        raise UserError(
            f"no checkpoint {selector!r} in {directory}, expected one of "
            f"{', '.join(map(str, steps))}, best"
        )
    defect = checkpoint_folder.find_defect(directory / str(step))
    if defect:
        others = [other for other in steps if other != step]
        raise UserError(
            f"{directory / str(step)} is damaged ({defect}): "
            + (f"pass another, as in RUN@{others[-1]}" if others else "it is the only one")
        )
    return directory / str(step)


def _default_step(directory: pathlib.Path, steps: list[int]) -> int:
    """The step of the epoch that a finished fine-tuning reports; for other runs the newest."""
    path = directory.parent / "result.json"
    if not path.is_file():
        return steps[-1]
    result = read_json(path)
    step = next(e["step"] for e in result["epochs"] if e["epoch"] == result["chosen_epoch"])
    if step not in steps:
        raise UserError(
            f"{directory} lacks step {step}, the epoch that {path.name} reports: got "
            f"{', '.join(map(str, steps))}; pass one, as in {directory.parent}@{steps[-1]}"
        )
    return step


def _best_step(directory: pathlib.Path, steps: list[int], config: dict[str, Any]) -> int:
    if "best_metric" not in config:
        raise UserError(
            f"{directory} belongs to a fine-tuning run, which has no best_metric: omit @best"
        )
    metric, mode = config["best_metric"], config["best_mode"]
    records = {s: checkpoint_folder.read_record(directory / str(s)).metrics for s in steps}
    ranks = checkpoint_folder.rank_steps(records, metric, mode)
    if not ranks:
        raise UserError(f"no checkpoint in {directory} has {metric!r}: pass a step instead of best")
    return ranks[0]


def check(checkpoint: pathlib.Path, params: PyTree, part: str = "encoder") -> None:
    """Checks that the arrays under `params/<part>` of a checkpoint match `params[part]`.

    Raises:
      UserError: names, shapes or types differ; a table shows the first that do.
    """
    prefix = f"params/{part}/"
    record = checkpoint_folder.read_record(checkpoint)
    found = {
        name.removeprefix(prefix): array
        for name, array in record.arrays.items()
        if name.startswith(prefix)
    }
    _compare(
        found, restore.describe(trees.flatten_names(params[part])), f"{checkpoint}: {{}}", part
    )


def place(arrays: PyTree, shapes: PyTree, owner: str) -> PyTree:
    """Places numpy arrays on devices with the shardings of the shapes of the same names.

    Args:
      arrays: Arrays; or shapes, which are returned as shapes, for ahead-of-time compilation.
      shapes: Expected shapes, with shardings.
      owner: Name of the model that the arrays belong to, for messages.

    Raises:
      UserError: names, shapes or types differ; a table shows the first that do.
    """
    found, expected = trees.flatten_names(arrays), trees.flatten_names(shapes)
    _compare(restore.describe(found), restore.describe(expected), "{}", owner)
    placed = {name: place_array(found[name], shape.sharding) for name, shape in expected.items()}
    return trees.unflatten_like(shapes, placed)


def _compare(found: Mapping, expected: Mapping, sentence: str, owner: str) -> None:
    names = dict.fromkeys([*expected, *found])
    differing = [name for name in names if found.get(name) != expected.get(name)]
    if differing:
        rows = [_row(name, found.get(name), expected.get(name)) for name in differing[:_MAX_ROWS]]
        hidden = len(differing) - len(rows)
        summary = (
            f"{len(differing)} of {len(names)} arrays of the {owner} do not match; expected a "
            "checkpoint of the same model"
        )
        rows += [f"  and {hidden} more"] if hidden else []
        raise UserError("\n".join([sentence.format(summary), *rows]))


def load_params(checkpoint: pathlib.Path, params: PyTree, part: str = "encoder") -> PyTree:
    """Replaces `params[part]` by the same part of a checkpoint, strictly matched.

    Of a run with an average of its weights, the average is loaded.

    Args:
      checkpoint: Folder of a step.
      params: Fresh parameters on their devices; the loaded ones get the same shardings.
      part: Name of the subtree.

    Raises:
      UserError: see `check`.
    """
    check(checkpoint, params, part)
    found = restore.load_weights(checkpoint, part)
    loaded = jax.tree.map(lambda new, old: place_array(old, new.sharding), params[part], found)
    return {**params, part: loaded}


def place_array(array: Any, sharding: jax.sharding.Sharding) -> jax.Array | jax.ShapeDtypeStruct:
    """Places one array; each host provides the shards of its devices."""
    if isinstance(array, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def _row(name: str, found: dict | None, expected: dict | None) -> str:
    if found is None:
        return f"  missing     {name}  {expected['dtype']}{expected['shape']}"
    if expected is None:
        return f"  unexpected  {name}  {found['dtype']}{found['shape']}"
    return (
        f"  differs     {name}  got {found['dtype']}{found['shape']}, "
        f"expected {expected['dtype']}{expected['shape']}"
    )
