"""Resolve a pretrained run as the source of another one, verify it and load its encoder."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
from jaxtyping import PyTree

from bertjax.errors import UserError
from bertjax.io import storage
from bertjax.io.files import read_json
from bertjax.train.checkpoint import folder as checkpoint_folder
from bertjax.train.checkpoint import restore, trees

_SHOWN_ROWS = 8


@dataclasses.dataclass(frozen=True)
class PretrainedSource:
    """Where an encoder comes from.

    Attributes:
      run: The folder of the run.
      checkpoint: The folder of one of its steps, or None for fresh parameters.
      config: The run's config, as plain values.
    """

    run: pathlib.Path
    checkpoint: pathlib.Path | None
    config: dict[str, Any]

    def description(self) -> dict[str, Any]:
        """What tells this origin from others, wherever the run's folder lies."""
        if self.checkpoint is None:
            return {"step": 0, "encoder": "random"}
        encoder = restore.load_numpy(self.checkpoint, "params/encoder")
        return {"step": int(self.checkpoint.name), "encoder": trees.fingerprint(encoder)}


def resolve(name: str) -> PretrainedSource:
    """Finds what the user means by RUN, RUN@STEP, RUN@best or random:RUN.

    RUN is the newest checkpoint of a run's folder, `RUN@best` the best by the run's own
    `best_metric`, `random:RUN` its model and tokenizer with fresh parameters. Of a fine-tuning run
    that keeps its checkpoints, RUN is the folder of one seed, `runs/mrpc/seed_0`, and its
    checkpoint that of the epoch whose scores the seed reports.

    Raises:
      UserError: there is no such run or checkpoint, or it is damaged.
    """
    if name == "random":
        raise UserError(
            "random requires a run whose model and tokenizer it takes: write random:RUN, where "
            "RUN is "
            "a run's folder"
        )
    fresh = name.startswith("random:")
    folder, _, which = name.removeprefix("random:").partition("@")
    holder = storage.to_path(folder)
    run = holder.parent if holder.name.startswith("seed_") else holder
    if not (run / "config.json").is_file():
        raise UserError(
            f"{run} is no run: it has no config.json; expected the --workdir of a pretraining run"
        )
    config = read_json(run / "config.json")
    refuse_released(run, config)
    if "model" not in config:
        sections = ", ".join(config) or "nothing"
        raise UserError(
            f"{run} has no model: got a config.json with {sections}, expected the --workdir of one "
            "pretraining or fine-tuning"
        )
    checkpoint = None if fresh else _checkpoint(holder / "checkpoints", which, config)
    return PretrainedSource(run, checkpoint, config)


def refuse_released(run: pathlib.Path, config: Mapping[str, Any]) -> None:
    """Raises `UserError` if a folder holds a model that transformers saved, and no run."""
    if "model" not in config and "model_type" in config:
        raise UserError(
            f"{run} is no run but what transformers saved: `bertjax import --from {run} --to RUN` "
            "makes a run of it"
        )


def _checkpoint(directory: pathlib.Path, which: str, config: dict[str, Any]) -> pathlib.Path:
    steps = checkpoint_folder.steps(directory)
    if not steps and "task" in config:
        raise UserError(
            f"{directory} holds no finished checkpoint: expected the folder of a seed, as in "
            "runs/mrpc/seed_0, of a fine-tuning with --config.keep_checkpoints=true"
        )
    if not steps:
        raise UserError(f"{directory} holds no finished checkpoint: wait for the run's first one")
    if which == "best":
        step = _best(directory, steps, config)
    elif which:
        step = int(which) if which.isdecimal() and int(which) in steps else None
    else:
        step = _chosen(directory, steps)
    if step is None:
        raise UserError(
            f"no checkpoint {which!r} in {directory}: it has {', '.join(map(str, steps))}, best"
        )
    defect = checkpoint_folder.defect(directory / str(step))
    if defect:
        others = [other for other in steps if other != step]
        raise UserError(
            f"{directory / str(step)} is damaged ({defect}): "
            + (f"name another, as in RUN@{others[-1]}" if others else "it is the only one")
        )
    return directory / str(step)


def _chosen(directory: pathlib.Path, steps: list[int]) -> int:
    """The step of the epoch that a finished fine-tuning reports; of other runs the newest step."""
    path = directory.parent / "result.json"
    if not path.is_file():
        return steps[-1]
    result = read_json(path)
    step = next(e["step"] for e in result["epochs"] if e["epoch"] == result["chosen_epoch"])
    if step not in steps:
        raise UserError(
            f"{directory} lacks step {step}, that of the epoch which {path.name} reports: it has "
            f"{', '.join(map(str, steps))}; name one, as in {directory.parent}@{steps[-1]}"
        )
    return step


def _best(directory: pathlib.Path, steps: list[int], config: dict[str, Any]) -> int:
    if "best_metric" not in config:
        raise UserError(f"{directory} is of fine-tuning, which keeps what counts: leave @best out")
    metric, mode = config["best_metric"], config["best_mode"]
    records = {s: checkpoint_folder.read_record(directory / str(s)).metrics for s in steps}
    ranked = checkpoint_folder.ranked(records, metric, mode)
    if not ranked:
        raise UserError(f"no checkpoint in {directory} has {metric!r}: name a step instead of best")
    return ranked[0]


def check(checkpoint: pathlib.Path, params: PyTree, part: str = "encoder") -> None:
    """Refuses a checkpoint whose arrays under `params/<part>` are not those of `params[part]`.

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
    _compare(found, restore.describe(trees.named(params[part])), f"{checkpoint}: {{}}", part)


def place(arrays: PyTree, shapes: PyTree, owner: str) -> PyTree:
    """Puts numpy arrays where shapes of the same names lie.

    Args:
      arrays: What there is; shapes stay shapes, for a program that is compiled and not run.
      shapes: What is expected, each with its sharding.
      owner: Whose arrays they are.

    Raises:
      UserError: names, shapes or types differ; a table shows the first that do.
    """
    found, wanted = trees.named(arrays), trees.named(shapes)
    _compare(restore.describe(found), restore.describe(wanted), "{}", owner)
    placed = {name: _placed(found[name], shape.sharding) for name, shape in wanted.items()}
    return trees.like(shapes, placed)


def _compare(found: Mapping, wanted: Mapping, sentence: str, owner: str) -> None:
    names = dict.fromkeys([*wanted, *found])
    differing = [name for name in names if found.get(name) != wanted.get(name)]
    if differing:
        rows = [_row(name, found.get(name), wanted.get(name)) for name in differing[:_SHOWN_ROWS]]
        hidden = len(differing) - len(rows)
        told = (
            f"{len(differing)} of {len(names)} arrays of the {owner} do not match; expected a "
            "checkpoint of the same model"
        )
        rows += [f"  and {hidden} more"] if hidden else []
        raise UserError("\n".join([sentence.format(told), *rows]))


def load_params(checkpoint: pathlib.Path, params: PyTree, part: str = "encoder") -> PyTree:
    """Replaces `params[part]` by the same part of a checkpoint, strictly matched.

    Args:
      checkpoint: Folder of a step.
      params: Fresh parameters on their devices; the taken ones are placed alike.
      part: Name of the subtree.

    Raises:
      UserError: see `check`.
    """
    check(checkpoint, params, part)
    found = restore.load_numpy(checkpoint, f"params/{part}")
    taken = jax.tree.map(lambda new, old: _placed(old, new.sharding), params[part], found)
    return {**params, part: taken}


def _placed(array: Any, sharding: jax.sharding.Sharding) -> jax.Array | jax.ShapeDtypeStruct:
    """Every host brings the pieces that its devices hold."""
    if isinstance(array, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def _row(name: str, found: dict | None, wanted: dict | None) -> str:
    if found is None:
        return f"  missing     {name}  {wanted['dtype']}{wanted['shape']}"
    if wanted is None:
        return f"  unexpected  {name}  {found['dtype']}{found['shape']}"
    return (
        f"  differs     {name}  came {found['dtype']}{found['shape']}, "
        f"expected {wanted['dtype']}{wanted['shape']}"
    )
