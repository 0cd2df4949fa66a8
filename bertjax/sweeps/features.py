"""The feature-based NER suite: one run for each row of BERT's table 7 (Devlin et al. 2019)."""

import pathlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from bertjax import build
from bertjax.config import FINE_TUNING, load_config
from bertjax.errors import UserError
from bertjax.huggingface import run_cache
from bertjax.io import copies
from bertjax.layers import layer_choice
from bertjax.overrides import Override
from bertjax.sweeps import scheduler
from bertjax.sweeps.run import Run, Score, read_results, read_score
from bertjax.sweeps.suite import RECIPES, read_recipes
from bertjax.sweeps.table import NO_VALUE

FINE_TUNING_ROW = "fine_tuning"
"""The row of a fine-tuned encoder, without a BiLSTM."""

PUBLISHED: Mapping[str, tuple[str, float | None]] = MappingProxyType(
    {
        "embeddings": ("embeddings", 91.0),
        "second_to_last": ("second-to-last hidden", 95.6),
        "last": ("last hidden", 94.9),
        "sum_last_four": ("sum of last four", None),
        "weighted_sum_last_four": ("weighted sum of last four", 95.9),
        "concat_last_four": ("concatenation of last four", 96.1),
        "weighted_sum_all": ("weighted sum of all layers", 95.5),
        FINE_TUNING_ROW: ("fine-tuning", 96.4),
    }
)
"""Labels of the rows, and dev F1 of BERT-base (Devlin et al. 2019, table 7)."""

LAYERS = tuple(layer_choice.CHOICES)
"""Names of the rows, in order: choices of layers."""

_METRIC = "dev/f1"
_FIELD = "task.layers"
_TASK = "conll2003"
_RECIPE = f"{_TASK},features"


def run_suite(
    *,
    init: str,
    data: str,
    workdir: str,
    layers: Sequence[str] = (),
    finetuned: str = "",
    seeds: int = 3,
    recipe: str = "",
    parallel: int = 1,
    config: str = "configs/ner.py",
    overrides: Sequence[Override] = (),
) -> scheduler.SuiteResult:
    """Trains a BiLSTM tagger on the layers of a frozen encoder, and writes a table of dev F1.

    Args:
      init: The pretrained run, as of `bertjax finetune`.
      data: Folder of CoNLL-2003.
      workdir: Folder of the suite; runs in it are resumed.
      layers: Names of `LAYERS`; all for which the encoder has enough layers if empty.
      finetuned: Folder of a finished fine-tuning of the same encoder, as one more row.
      seeds: Number of seeds of each run.
      recipe: Variant of the config file's recipe: `small` or `tiny`.
      parallel: Maximum number of runs at a time.
      config: Config file with the recipes.
      overrides: Config overrides of all runs.

    Raises:
      UserError: an argument is invalid, or the folder belongs to another suite.
      Interrupted: Ctrl-C or SIGTERM stopped the runs, which have saved.
    """
    if _FIELD in dict(overrides):
        raise UserError(
            f"--config.{_FIELD}: got {dict(overrides)[_FIELD]}, expected none, since it differs "
            "between rows; choose them with --layers"
        )
    spec = f"{config}:{_RECIPE}" + (recipe and f",{recipe}")
    build.check(load_config(spec, overrides, FINE_TUNING))
    layers = find_layers(init, layers)
    more = [read_finetuned(finetuned, init)] if finetuned else []
    options = {"config": spec, "init": init, "data": data, "seeds": seeds}
    runs = [
        Run(name, "finetune", options, {_FIELD: name}, overrides) for name in dict.fromkeys(layers)
    ]
    record = {"init": init, "data": data, "recipe": recipe}
    record["overrides"] = [f"{name}={value}" for name, value in overrides]
    record[RECIPES] = read_recipes({_TASK: spec})
    return scheduler.run_suite(
        runs,
        workdir,
        {"features": record},
        parallel=parallel,
        write=lambda folder: _write(folder, more),
    )


def find_layers(init: str, names: Sequence[str] = ()) -> list[str]:
    """The given choices of layers, or all for which an encoder has enough layers.

    Args:
      init: See `run_cache.resolve`.
      names: Names of `layers/layer_choice.py`.

    Raises:
      UserError: the run does not exist, or has too few layers.
    """
    num_hidden_layers = build.num_hidden_layers(run_cache.resolve(init).config["model"])
    for name in names:
        try:
            layer_choice.check(name, num_hidden_layers)
        except UserError as error:
            raise UserError(f"--layers {','.join(names)}: {error}") from None
    return list(names) or layer_choice.supported_choices(num_hidden_layers)


def read_finetuned(workdir: str, init: str) -> Score:
    """The row of a fine-tuning of the same encoder on the task.

    Raises:
      UserError: the folder is not a finished fine-tuning on NER, or is of another encoder.
    """
    folder = copies.local_copy(workdir)
    results = read_results(folder)
    if results is None or _METRIC not in results["over_seeds"] or results["task"] != "ner":
        raise UserError(
            f"--finetuned {workdir}: expected the --workdir of a finished bertjax finetune "
            "--config configs/ner.py:conll2003"
        )
    if results["init"]["encoder"] != run_cache.resolve(init).description()["encoder"]:
        raise UserError(
            f"--finetuned {workdir} was initialised from another encoder: got "
            f"{results['init']['name']}, expected {init}; specify a run of the same encoder"
        )
    return read_score(FINE_TUNING_ROW, folder, _METRIC)


def read_scores(workdir: pathlib.Path) -> list[Score]:
    """The scores of all rows that are finished in a folder."""
    scores = (read_score(name, workdir / name, _METRIC) for name in LAYERS)
    return [score for score in scores if score is not None]


def _write(folder: pathlib.Path, more: Sequence[Score]) -> list[Score]:
    if scores := [*read_scores(folder), *more]:
        scheduler.write_table(folder, rows(scores), content(scores))
    return scores


def rows(scores: Sequence[Score]) -> list[list[str]]:
    """A header and a row for each score, in percent."""
    table = [["layers", "dev F1, median", "spread", "seeds", "BERT-base, published"]]
    for score in scores:
        label, published = PUBLISHED[score.name]
        median = f"{100 * score.medians[_METRIC]:.1f}"
        known = NO_VALUE if published is None else f"{published:.1f}"
        table.append([label, median, score.spread, str(score.seeds), known])
    return table


def content(scores: Sequence[Score]) -> dict[str, Any]:
    """The table as plain values for JSON, as fractions."""
    return {
        score.name: {
            "medians": dict(score.medians),
            _METRIC: {"min": score.lowest, "max": score.highest},
            "seeds": score.seeds,
            "published": _fraction(PUBLISHED[score.name][1]),
            "workdir": str(score.workdir),
        }
        for score in scores
    }


def read(content: Mapping[str, Any]) -> list[Score]:
    """The scores of a table that `content` has converted to plain values."""
    return [
        Score(
            name=name,
            workdir=pathlib.Path(row["workdir"]),
            medians=row["medians"],
            lowest=row[_METRIC]["min"],
            highest=row[_METRIC]["max"],
            seeds=row["seeds"],
        )
        for name, row in content.items()
    ]


def _fraction(percent: float | None) -> float | None:
    return None if percent is None else round(percent / 100, 4)
