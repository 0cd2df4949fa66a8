"""The feature-based NER suite: a run for each row of BERT's table 7.

plan      names of layers -> Runs (`sweeps/processes.py` starts them)
collect   finished Runs -> Scores
rows, content   Scores -> the table, and the same as plain values
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from bertjax.errors import UserError
from bertjax.io import copies
from bertjax.layers import layer_choice
from bertjax.sweeps.processes import finished
from bertjax.train.checkpoint import origin

FINE_TUNING = "fine_tuning"
"""The row of an encoder that is trained, without a BiLSTM."""

PUBLISHED: Mapping[str, tuple[str, float | None]] = MappingProxyType(
    {
        "embeddings": ("embeddings", 91.0),
        "second_to_last": ("second-to-last hidden", 95.6),
        "last": ("last hidden", 94.9),
        "sum_last_four": ("sum of last four", None),
        "weighted_sum_last_four": ("weighted sum of last four", 95.9),
        "concat_last_four": ("concatenation of last four", 96.1),
        "weighted_sum_all": ("weighted sum of all layers", 95.5),
        FINE_TUNING: ("fine-tuning", 96.4),
    }
)
"""What rows are called, and BERT-base's F1 on the dev split (Devlin et al. 2019, table 7)."""

LAYERS = tuple(layer_choice.CHOICES)
"""The rows of a table, in order."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One row of the table.

    Attributes:
      row: Its name in `PUBLISHED`.
      workdir: Its own.
    """

    row: str
    workdir: pathlib.Path


@dataclasses.dataclass(frozen=True)
class Score:
    """What a row came to.

    Attributes:
      run: Which.
      medians: Of every metric, over the seeds, as fractions.
      lowest: The lowest dev F1 of a seed.
      highest: The highest.
      seeds: How many there were.
    """

    run: Run
    medians: Mapping[str, float]
    lowest: float
    highest: float
    seeds: int


def plan(layers: Sequence[str], workdir: pathlib.Path) -> list[Run]:
    """A run for each of the names of layers, in the order in which they are started."""
    return [Run(name, workdir / name) for name in dict.fromkeys(layers)]


def layers_of(init: str, asked: Sequence[str] = ()) -> list[str]:
    """The names of layers that are asked for, or all that an encoder has enough layers for.

    Args:
      init: See `transfer.find`.
      asked: Names of `layers/layer_choice.py`.

    Raises:
      UserError: there is no such run, or it has too few layers for what is asked.
    """
    num_hidden_layers = origin.resolve(init).config["model"]["num_hidden_layers"]
    for name in asked:
        try:
            layer_choice.check(name, num_hidden_layers)
        except UserError as error:
            raise UserError(f"--layers {','.join(asked)}: {error}") from None
    return list(asked) or layer_choice.of_encoder(num_hidden_layers)


def fine_tuned(workdir: str, init: str) -> Run:
    """The row of the same encoder, once a `bertjax finetune` has trained it on the task.

    Raises:
      UserError: it is none, or of another encoder.
    """
    run = Run(FINE_TUNING, copies.local_copy(workdir))
    found = finished(run.workdir)
    if found is None or "dev/f1" not in found["over_seeds"] or found["task"] != "ner":
        raise UserError(
            f"--finetuned {workdir}: expected the --workdir of a finished bertjax finetune "
            f"--config "
            "configs/ner.py:conll2003"
        )
    if found["init"]["encoder"] != origin.resolve(init).description()["encoder"]:
        raise UserError(
            f"--finetuned {workdir} began with another encoder, that of {found['init']['name']}: "
            f"name a run that began with {init}"
        )
    return run


def collect(workdir: pathlib.Path, more: Sequence[Run] = ()) -> list[Score]:
    """The scores of all rows that are finished in a folder, and of further runs."""
    runs = [*plan(LAYERS, workdir), *more]
    found = ((run, finished(run.workdir)) for run in runs)
    return [_score(run, results) for run, results in found if results]


def _score(run: Run, results: Mapping[str, Any]) -> Score:
    over_seeds = results["over_seeds"]
    medians = {name: spread["median"] for name, spread in over_seeds.items()}
    f1 = over_seeds["dev/f1"]
    return Score(run, medians, f1["min"], f1["max"], results["seeds"])


def rows(scores: Sequence[Score]) -> list[list[str]]:
    """A row for each score, in percent; the first row names the columns."""
    table = [["layers", "dev F1, median", "spread", "seeds", "BERT-base, published"]]
    for score in scores:
        name, published = PUBLISHED[score.run.row]
        median = f"{100 * score.medians['dev/f1']:.1f}"
        spread = f"{100 * score.lowest:.1f} to {100 * score.highest:.1f}"
        known = "-" if published is None else f"{published:.1f}"
        table.append([name, median, spread, str(score.seeds), known])
    return table


def content(scores: Sequence[Score]) -> dict[str, Any]:
    """The same as plain values, as fractions."""
    return {
        score.run.row: {
            "medians": dict(score.medians),
            "dev/f1": {"min": score.lowest, "max": score.highest},
            "seeds": score.seeds,
            "published": _fraction(PUBLISHED[score.run.row][1]),
            "workdir": str(score.run.workdir),
        }
        for score in scores
    }


def _fraction(percent: float | None) -> float | None:
    return None if percent is None else round(percent / 100, 4)
