"""Question: the best architecture and optimizer at BERT-mini's size for a given time on two cores.

    bertjax tokenizer train --input 'enwiki/*.gz' --vocab_size 8192 --output vocab/enwiki
    bertjax prepare --input 'enwiki/*.gz' --validation_input 'enwiki_heldout/*.gz' \
        --tokenizer vocab/enwiki --output corpora/enwiki
    python experiments/architectures.py --corpus corpora/enwiki --tokenizer vocab/enwiki \
        --seconds 600 --workdir runs/architectures

Every run has the same text, tokenizer, sequences of 128 tokens, batch of 32 and time of training;
its learning rate follows the time. All checkpoints are then measured by one task, whatever the
run's own objective: 15% of single tokens masked in full sentences of 128 held-out tokens.
Architectures are compared first, which is the default, then optimizers on one of them: `--runs
modernbert+muon ...`.

`--num_train_tokens` compares for a number of tokens instead; then several processes may share an
accelerator, each with its own --seeds, --runs and --output.

Runs resume, and complete ones are not repeated. The table is printed and stored with the curves in
--output, which is plotted.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax import build, pretrain
from bertjax.config import load_config, replace_fields
from bertjax.errors import Interrupted, UserError, nearest
from bertjax.io import files as io_files
from bertjax.runs import held_out, pretrain_job
from bertjax.train.checkpoint import folder as checkpoint_folder
from bertjax.train.checkpoint import restore
from bertjax.train.metric_records import read_metrics

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
    "muon": {"optimizer.learning_rate": 2e-2},
    "lamb": {"optimizer.learning_rate": 1e-2},
}
"""Overrides of `RUN+OPTIMIZER`, in addition to the name of the optimizer."""
LENGTH, BATCH = 128, 32
MAX_STEPS = 20_000
"""More than fit into the time; the warmup is a share of it."""
NUM_CHECKPOINTS = 10
"""Points of the curve of a run with a number of tokens."""


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
    rows = json.loads(output.read_text(encoding="utf-8")) if output.exists() else []
    for name in arguments.runs:
        for seed in arguments.seeds:
            key = {"run": name, "seed": seed, **_limit(arguments)}
            if not any(key.items() <= row.items() for row in rows):
                rows.append(key | _measure(arguments, name, seed))
                io_files.write_atomic(output, f"{json.dumps(rows, indent=1)}\n".encode())
    for row in sorted(rows, key=lambda row: row["loss"]):
        print(
            f"{row['run']:24} seed {row['seed']}  {row['steps']:7,} steps "
            f"{row['tokens_per_second']:9,.0f} tokens/s  loss {row['loss']:.4f}"
        )
    _plot(rows, output.with_suffix(".png"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("corpus", "tokenizer", "workdir"):
        parser.add_argument(f"--{name}", required=True, metavar="DIR")
    parser.add_argument("--seconds", type=float, default=600.0, help="of training of each run")
    parser.add_argument("--num_train_tokens", type=int, metavar="N", help="instead of --seconds")
    parser.add_argument("--runs", nargs="+", default=list(ARCHITECTURES), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--output", default="experiments/architectures.json", metavar="FILE")
    return parser


def _limit(arguments: argparse.Namespace) -> dict[str, float]:
    """How long each run trains: `num_train_tokens` or `seconds`."""
    if arguments.num_train_tokens:
        return {"num_train_tokens": arguments.num_train_tokens}
    return {"seconds": arguments.seconds}


def _config(arguments: argparse.Namespace, name: str, seed: int) -> Any:
    architecture, _, optimizer = name.partition("+")
    for known, given in ((ARCHITECTURES, architecture), (OPTIMIZERS, optimizer)):
        if given and given not in known:
            raise UserError(f"--runs {name}: unknown {given!r}: {nearest(given, known)}")
    spec, own = ARCHITECTURES[architecture]
    chosen = {"optimizer.name": optimizer} | OPTIMIZERS[optimizer] if optimizer else {}
    steps, budget, interval = MAX_STEPS, arguments.seconds, 250
    if arguments.num_train_tokens:
        steps, budget = arguments.num_train_tokens // (LENGTH * BATCH), 0.0
        interval = -(-steps // NUM_CHECKPOINTS)
    return load_config(
        spec,
        {
            "seed": seed,
            "data.corpus": arguments.corpus,
            "data.phases": (),
            "data.max_seq_length": LENGTH,
            "data.batch_size": BATCH,
            "tokenizer.path": arguments.tokenizer,
            "model.vocab_size": 8192,
            "num_train_steps": steps,
            "budget_seconds": budget,
            "optimizer.warmup_steps": steps // 30,
            "log_every": 50,
            "eval_every": 0,
            "checkpoint_every": interval,
            "keep_checkpoints": 100,
            "keep_best": 0,
            **own,
            **chosen,
        },
    )


def _measure(arguments: argparse.Namespace, name: str, seed: int) -> dict[str, Any]:
    """Trains a run and measures its checkpoints."""
    config = _config(arguments, name, seed)
    workdir = pathlib.Path(arguments.workdir) / f"{name}-{seed}"
    result = pretrain(config, str(workdir), log=lambda line: print(f"{name} {seed}: {line}"))
    summary = result.summary
    seconds = summary.get("budget_seconds_spent") or summary["goodput/steps"]
    curve = list(_held_out_losses(config, workdir))
    return {
        "steps": summary["steps"],
        "tokens_per_second": summary["tokens"] / seconds,
        "parameters": summary["parameters"],
        "loss": curve[-1][1],
        "curve": curve,
    }


def _held_out_losses(config: Any, workdir: pathlib.Path) -> Iterator[tuple[float, float]]:
    """Yields (seconds of training or tokens, loss in nats) of each checkpoint."""
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
    records = [record for record in read_metrics(workdir) if "schedule_step" in record]
    steps = [record["step"] for record in records]
    share = config.budget_seconds / config.num_train_steps  # the schedule follows the time
    seconds = [record["schedule_step"] * share for record in records]
    for step in checkpoint_folder.steps(workdir / "checkpoints"):
        checkpoint = workdir / "checkpoints" / str(step)
        read = restore.load_numpy(checkpoint, restore.evaluation_prefix(checkpoint))
        params = {name: read[name] for name in job.trainer.shapes.params}  # no other heads
        examples = job.examples(job.held_out, build.phases(job.config)[0])
        found = held_out.measure(job.trainer, params, examples, batch_size=32, limit=1024)
        # An interrupted run has a checkpoint of a step without a record.
        spent = np.interp(step, steps, seconds) if seconds else step * LENGTH * BATCH
        yield float(spent), found[f"held_out/{objective}/loss"]


def _plot(rows: Sequence[Mapping[str, Any]], path: pathlib.Path) -> None:
    """Plots the loss of every run over its time of training, or over its tokens."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    by_time = "seconds" in rows[0]
    unit, axis = (60, "minutes of training") if by_time else (1e6, "million tokens")
    names = list(dict.fromkeys(row["run"] for row in rows))
    for row in rows:
        spent, losses = np.array(row["curve"]).T
        color = f"C{names.index(row['run'])}"
        first = next(other for other in rows if other["run"] == row["run"])
        label = row["run"] if row is first else None
        axes.plot(spent / unit, losses, ".-", color=color, label=label)
    axes.set(xlabel=axis, ylabel="held-out loss, 15% masks [nats]")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
