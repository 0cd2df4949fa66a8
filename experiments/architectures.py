"""Question: the best architecture and optimizer at BERT-mini's size for a given time on two cores.

    bertjax tokenizer train --input 'enwiki/*.gz' --vocab_size 8192 --output vocab/enwiki
    bertjax prepare --input 'enwiki/*.gz' --validation_input 'enwiki_heldout/*.gz' \
        --tokenizer vocab/enwiki --output corpora/enwiki
    python experiments/architectures.py --corpus corpora/enwiki --tokenizer vocab/enwiki \
        --seconds 1200 --workdir runs/architectures

Every run has the same text, tokenizer, sequences of 128 tokens, batch of 32 and time of training.
The time is converted to tokens by the speed of each recipe, measured first, in turns, with nothing
else running; the runs themselves can then share the machine with others, and resume. All
checkpoints are measured by one task, whatever the run's own objective: 15% of single tokens masked
in full sentences of 128 held-out tokens. Architectures are compared first, which is the default,
then optimizers on one of them: `--runs modernbert+muon ...`, or with another peak learning rate:
`--runs modernbert+muon@3e-3 ...`.

`--num_train_tokens` compares for a number of tokens instead.

Complete runs and measured speeds are not repeated. The table is printed and stored with the speeds
and curves in --output, which is plotted.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax import build, pretrain
from bertjax.config import load_config, replace_fields
from bertjax.errors import Interrupted, UserError, nearest
from bertjax.io import files as io_files
from bertjax.runs import held_out, pretrain_job
from bertjax.runtime.interrupt import Interrupt
from bertjax.train.checkpoint import folder as checkpoint_folder
from bertjax.train.checkpoint import restore

ARCHITECTURES = {
    "bert": ("bert_mini_hour", {}),
    "modernbert": ("modernbert:mini", {}),
    "gpt_bert": ("gpt_bert:mini", {}),
    "deberta": (
        "deberta:mini,mlm",
        {
            "model.hidden_dropout_prob": 0.0,
            "model.attention_probs_dropout_prob": 0.0,
            "model.initializer_range": 0.04,
            "model.position_buckets": 32,
            "model.max_position_embeddings": 128,
            "optimizer.learning_rate": 1e-3,
        },
    ),
}
"""Config and overrides of each architecture."""
OPTIMIZERS = {
    "adamw": {},
    "stable_adamw": {},
    "muon": {},
    "lamb": {"optimizer.learning_rate": 1e-2},
}
"""Overrides of `RUN+OPTIMIZER`, in addition to the name of the optimizer.

Muon has the rate of AdamW, whose updates have the same size (`muon_rms`).
"""
LENGTH, BATCH, VOCAB_SIZE = 128, 32, 8192
NUM_TIMINGS = 5
"""Processes whose median is the speed of a recipe."""
NUM_CHECKPOINTS = 10
"""Points of the curve of a run."""


def main() -> None:
    """Runs the command line."""
    try:
        run(sys.argv[1:])
    except UserError as error:
        sys.exit(f"architectures: error: {error}")
    except Interrupted as interrupted:
        print(f"architectures: {interrupted}; the same command resumes", file=sys.stderr)
        sys.exit(interrupted.exit_code)


def run(words: Sequence[str]) -> None:
    """Trains the missing runs, measures them, prints the table and plots the curves.

    Raises:
      UserError: unknown run, or an error of the runs.
    """
    arguments = _parser().parse_args(words)
    output = pathlib.Path(arguments.output)
    stored: dict[str, Any] = {"tokens_per_second": {}, "runs": []}
    if output.exists():
        stored = json.loads(output.read_text(encoding="utf-8"))
    speeds, rows = stored["tokens_per_second"], stored["runs"]

    def save() -> None:
        io_files.write_atomic(output, f"{json.dumps(stored, indent=1)}\n".encode())

    for timing in range(NUM_TIMINGS):
        for name in map(_without_rate, arguments.runs):
            if len(speeds.setdefault(name, [])) <= timing:
                speeds[name].append(_tokens_per_second(name))
                save()
    for seed in arguments.seeds:
        for name in arguments.runs:
            limit = {"seconds": arguments.seconds}
            tokens = int(arguments.seconds * statistics.median(speeds[_without_rate(name)]))
            if arguments.num_train_tokens:
                tokens = arguments.num_train_tokens
                limit = {"num_train_tokens": tokens}
            key = {"run": name, "seed": seed, **limit}
            if not any(key.items() <= row.items() for row in rows):
                rows.append(key | _train_and_measure(arguments, name, seed, tokens))
                save()
    for row in sorted(rows, key=lambda row: row["loss"]):
        speed = statistics.median(speeds[_without_rate(row["run"])])
        print(
            f"{row['run']:24} seed {row['seed']}  {row['steps']:7,} steps "
            f"{speed:9,.0f} tokens/s  loss {row['loss']:.4f}"
        )
    _plot(stored, output.with_suffix(".png"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("corpus", "tokenizer", "workdir"):
        parser.add_argument(f"--{name}", required=True, metavar="DIR")
    parser.add_argument("--seconds", type=float, default=1200.0, help="of training of each run")
    parser.add_argument("--num_train_tokens", type=int, metavar="N", help="instead of --seconds")
    parser.add_argument("--runs", nargs="+", default=list(ARCHITECTURES), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--output", default="experiments/architectures.json", metavar="FILE")
    return parser


def _without_rate(name: str) -> str:
    return name.partition("@")[0]


def _overrides(name: str) -> tuple[str, dict[str, Any]]:
    """The config of a run and the values that differ from it.

    Raises:
      UserError: unknown architecture or optimizer, or a learning rate that is no number.
    """
    architecture, _, optimizer = _without_rate(name).partition("+")
    for known, given in ((ARCHITECTURES, architecture), (OPTIMIZERS, optimizer)):
        if given and given not in known:
            raise UserError(f"--runs {name}: unknown {given!r}: {nearest(given, known)}")
    spec, own = ARCHITECTURES[architecture]
    chosen = {"optimizer.name": optimizer} | OPTIMIZERS[optimizer] if optimizer else {}
    if "@" in name:
        rate = name.partition("@")[2]
        try:
            chosen["optimizer.learning_rate"] = float(rate)
        except ValueError:
            raise UserError(f"--runs {name}: got {rate!r}, expected a learning rate") from None
    shape = {"data.phases": (), "data.max_seq_length": LENGTH, "data.batch_size": BATCH}
    return spec, {**shape, "model.vocab_size": VOCAB_SIZE, **own, **chosen}


def _tokens_per_second(name: str) -> float:
    """Measures a recipe in a process of `bertjax bench`."""
    spec, overrides = _overrides(name)
    command = [sys.executable, "-m", "bertjax", "bench", "--json", "--config", spec]
    command += [f"--config.{field}={value}" for field, value in overrides.items()]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    (phase,) = json.loads(done.stdout)["phases"]
    print(f"{name}: {phase['tokens_per_second']:,.0f} tokens/s", flush=True)
    return phase["tokens_per_second"]


def _train_and_measure(
    arguments: argparse.Namespace, name: str, seed: int, tokens: int
) -> dict[str, Any]:
    """Trains a run and measures its checkpoints."""
    spec, overrides = _overrides(name)
    steps = tokens // (LENGTH * BATCH)
    training = {
        "seed": seed,
        "data.corpus": arguments.corpus,
        "tokenizer.path": arguments.tokenizer,
        "num_train_steps": steps,
        "optimizer.warmup_steps": steps // 30,
        "log_every": 50,
        "eval_every": 0,
        "checkpoint_every": -(-steps // NUM_CHECKPOINTS),
        "keep_checkpoints": 100,
        "keep_best": 0,
    }
    config = load_config(spec, training | overrides)
    workdir = pathlib.Path(arguments.workdir) / f"{name}-{seed}"
    result = pretrain(config, str(workdir), log=lambda line: print(f"{name} {seed}: {line}"))
    curve = list(_held_out_losses(config, workdir))
    return {
        "steps": steps,
        "parameters": result.summary["parameters"],
        "loss": curve[-1][1],
        "curve": curve,
    }


def _held_out_losses(config: Any, workdir: pathlib.Path) -> Iterator[tuple[int, float]]:
    """Yields (tokens, loss in nats) of each checkpoint."""
    (objective,) = {"mlm", "mntp", "enhanced_mlm"} & set(config.objectives)
    masks = {"masked_lm_prob": 0.15, "masking": "token", "mask_share": 0.8, "random_share": 0.1}
    task = {f"objectives.{objective}.{field}": value for field, value in masks.items()}
    task["data.format"] = "full-sentences"
    if objective == "mntp":
        task |= {"objectives.mntp.final_masked_lm_prob": 0.0, "objectives.mntp.causal_share": 0.0}
    measured = replace_fields(config, task | {"data.pair": "none"})
    with measured.unlocked():
        measured.objectives = {objective: measured.objectives[objective]}
        measured.best_metric = f"held_out/{objective}/loss"
    job = pretrain_job.prepare(measured, str(workdir), log=lambda _: None)
    for step in checkpoint_folder.steps(workdir / "checkpoints"):
        checkpoint = workdir / "checkpoints" / str(step)
        read = restore.load_weights(checkpoint)
        params = {name: read[name] for name in job.trainer.shapes.params}  # no other heads
        examples = job.examples(job.held_out, build.phases(job.config)[0])
        found = held_out.measure(
            job.trainer, params, examples, batch_size=32, interrupt=Interrupt(), limit=1024
        )
        yield step * LENGTH * BATCH, found[f"held_out/{objective}/loss"]


def _plot(stored: Mapping[str, Any], path: pathlib.Path) -> None:
    """Plots the loss of every run over its time of training, or over its tokens."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    rows, speeds = stored["runs"], stored["tokens_per_second"]
    by_time = all("seconds" in row for row in rows)
    names = list(dict.fromkeys(row["run"] for row in rows))
    for row in rows:
        tokens, losses = np.array(row["curve"]).T
        unit = 60 * statistics.median(speeds[_without_rate(row["run"])]) if by_time else 1e6
        color = f"C{names.index(row['run'])}"
        first = next(other for other in rows if other["run"] == row["run"])
        label = row["run"] if row is first else None
        axes.plot(tokens / unit, losses, ".-", color=color, label=label)
    axis = "minutes of training" if by_time else "million tokens"
    axes.set(xlabel=axis, ylabel="held-out loss, 15% masks [nats]")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
