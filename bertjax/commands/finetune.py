"""Fine-tune a pretrained encoder on a GLUE task, with several seeds, and score it."""

import argparse
import contextlib
import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.commands.pretrain import DISTRIBUTED
from bertjax.constraints import PositiveInt, checked

EPILOG = """\
examples:
  bertjax finetune --config configs/glue.py:mrpc --init runs/bert --data glue --workdir runs/mrpc
  bertjax finetune --config configs/glue.py:cola,small --init runs/mini@best --data glue \\
      --workdir runs/cola --seeds 5 --config.optimizer.learning_rate=3e-4
  bertjax finetune --config configs/glue.py:rte+mrpc --init runs/bert --data glue \\
      --workdir runs/rte_and_mrpc
  bertjax finetune --config configs/glue.py:rte --init random:runs/bert --data tfds:/data/tfds \\
      --workdir runs/rte_from_nothing

--init is the folder of a pretraining run: RUN is its newest checkpoint, RUN@STEP or RUN@best
another one, random:RUN its model and tokenizer with fresh parameters; and RUN/seed_N a seed of a
fine-tuning that kept its checkpoints (--config.keep_checkpoints=true). --data is the folder that
holds CoLA/, SST-2/, MRPC/ and so on as GLUE released them, or tfds:DIR, where glue/TASK is prepared
as ArrayRecord.

In the workdir: results.json (every seed, every epoch, median and spread), summary.json,
predictions/ (the evaluation server's files, from the seed whose dev score is the median) and
seed_N/ (metrics and predictions of that seed). The same command continues where it was stopped;
more --seeds add to those that are there.
"""


_NAMED = 5


def main(argv: list[str]) -> None:
    """Fine-tunes every seed that is not finished and prints the scores of all."""
    from bertjax.config import FINE_TUNING, load_config, split_overrides

    rest, overrides = split_overrides(argv)
    arguments = _parser().parse_args(rest)
    recipe = load_config(arguments.config, overrides, FINE_TUNING)
    from bertjax import build
    from bertjax.runtime import distributed

    build.check(recipe)

    distributed.connect(arguments.distributed)
    results = run(recipe, arguments, argv)
    if _is_first_host():
        _print_table(results)
        _log(_outcome(recipe, arguments, argv, results))


def run(recipe, arguments: argparse.Namespace, argv: list[str]) -> list[dict[str, Any]]:
    """Fine-tunes the seeds one after the other; a finished seed is not trained again.

    Args:
      recipe: The config.
      arguments: Those of the command line but for overrides.
      argv: The whole command line, for the command that is printed.
    """
    from bertjax import config as configs
    from bertjax.layers.attention_kernels import log_kernel_choice
    from bertjax.runs import bucket_sync, finetune, multitask
    from bertjax.runs import results as runs_results
    from bertjax.runs.workdir import claim
    from bertjax.runtime import distributed
    from bertjax.runtime.interrupt import Interrupt

    distributed.check_identical(config=configs.fingerprint(recipe), workdir=arguments.workdir)
    start = time.monotonic()
    folder = bucket_sync.on_this_machine(arguments.workdir, alone=True)
    prepare = multitask.prepare if multitask.asked(recipe) else finetune.prepare
    job = prepare(recipe, init=arguments.init, data=arguments.data, workdir=folder)
    distributed.barrier("prepared data")
    facts = {"task": job.dataset.name, "init": {"name": arguments.init, **job.config.init}}
    facts["examples"] = _sizes(job)
    left_out = {split: list(names) for split, names in job.dataset.left_out.items() if names}
    if left_out:
        facts["left_out"] = left_out
    _log(_description(job, arguments))
    held = contextlib.nullcontext()
    if _is_first_host():
        content = json.loads(configs.to_json(job.config))
        held = claim(job.workdir, content, free=finetune.FREE_FIELDS)
    results = []
    with (
        held,
        bucket_sync.synced(folder, arguments.workdir),
        Interrupt() as interrupt,
        log_kernel_choice(_log),
    ):
        for seed in range(recipe.seed, recipe.seed + arguments.seeds):
            result = runs_results.read(job.folder(seed)) or finetune.fine_tune(job, seed, interrupt)
            if result is None:
                _log(f"stopped in seed {seed}; the same command resumes it: {_command(argv)}")
                raise SystemExit(interrupt.exit_code)
            _log(f"seed {seed}, epoch {result['chosen_epoch']}: {_text(result['scores'])}")
            results.append(result)
            facts["seconds"] = time.monotonic() - start
            complete = len(results) == arguments.seeds
            runs_results.write(job.workdir, job.config, results, facts, complete=complete)
    return results


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bertjax finetune",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", required=True, help="config file, as in configs/glue.py:mrpc")
    parser.add_argument("--init", required=True, help="RUN, RUN@STEP, RUN@best or random:RUN")
    parser.add_argument("--data", required=True, help="folder of the task, or tfds:DIR")
    parser.add_argument("--workdir", required=True, help="folder for what comes out")
    parser.add_argument("--distributed", action="store_true", help=DISTRIBUTED)
    parser.add_argument(
        "--seeds",
        action=checked(PositiveInt),
        default=1,
        help="how many, from config.seed on (default 1)",
    )
    return parser


def _description(job, arguments: argparse.Namespace) -> str:
    from bertjax import build
    from bertjax.runs import finetune
    from bertjax.train.checkpoint import trees

    old = finetune.transferred_parts(job) or ["encoder"]
    new = [name for name in trees.named(job.shapes) if name.partition("/")[0] not in old]
    count = trees.num_parameters(job.shapes["encoder"])
    if job.origin.checkpoint is None:
        source = f"fresh parameters, the model of {job.origin.run}"
    else:
        source = f"{job.origin.checkpoint}, sha256 {job.config.init.encoder[:16]}"
    frozen = ", which stay as they are" if build.freezes_encoder(job.config) else ""
    shown = ", ".join(f"{split} {size:,}" for split, size in _sizes(job).items())
    return (
        f"{job.dataset.name}: {shown}\n"
        f"{_left_out(job.dataset.left_out)}"
        f"encoder: {count:,} parameters from {source}{frozen}\n"
        f"new: {', '.join(new)}\n"
        f"{arguments.seeds} seed(s) of {job.config.num_train_steps:,} steps in "
        f"{job.config.num_train_epochs} epochs"
    )


def _sizes(job) -> dict[str, int]:
    """Sequences of each split."""
    return {split: batches.num_examples for split, batches in job.dataset.batches.items()}


def _left_out(left_out: Mapping[str, Sequence[str]]) -> str:
    """A line for each split in which examples had to be passed over: how many, and the first."""
    lines = []
    for split, names in left_out.items():
        if names:
            more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
            first = ", ".join(names[:_NAMED])
            lines.append(f"left out of {split}: {len(names):,}: {first}{more}\n")
    return "".join(lines)


def _command(argv: list[str]) -> str:
    return shlex.join(["bertjax", "finetune", *argv])


def _outcome(
    recipe, arguments: argparse.Namespace, argv: list[str], results: list[dict[str, Any]]
) -> str:
    """Where the results are, and the command for the next step."""
    from bertjax.io import storage
    from bertjax.overrides import with_overrides
    from bertjax.runs import multitask
    from bertjax.runs import results as runs_results
    from bertjax.tasks.glue.head import BETWEEN

    workdir = arguments.workdir.rstrip("/")
    seed = f"{workdir}/seed_{runs_results.median_seed(results)}"
    results_line = f"results  {workdir}/results.json, summary.json, predictions/, seed_N/"
    if storage.to_path(f"{seed}/checkpoints").exists():
        task = recipe.task.dataset.partition(BETWEEN)[0] if multitask.asked(recipe) else ""
        predict = ["bertjax", "predict", "--init", seed, *(["--task", task] if task else [])]
        return f"{results_line}\nnext     {shlex.join(predict)} --input TEXTS"
    kept = f"{workdir}_kept"
    replaced = {arguments.workdir: kept, f"--workdir={arguments.workdir}": f"--workdir={kept}"}
    words = [replaced.get(word, word) for word in argv]
    return (
        f"{results_line}\nno checkpoint was kept; to predict or export, train one that is:\n"
        f"next     {_command(with_overrides(words, {'keep_checkpoints': True}))}"
    )


def _print_table(results: list[dict[str, Any]]) -> None:
    """Each seed's scores and their spread, on standard output."""
    from bertjax.runs import results as runs_results

    over_seeds = runs_results.spreads(results)
    names = list(over_seeds)
    rows = [
        [str(result["seed"]), str(result["chosen_epoch"])]
        + [f"{result['scores'][name]:.4f}" for name in names]
        for result in results
    ]
    spread_rows = [
        [measure, "", *[f"{over_seeds[name][measure]:.4f}" for name in names]]
        for measure in ("median", "min", "max", "std")
    ]
    header = ["seed", "epoch", *names]
    if sys.stdout.isatty():
        _print_rich(header, rows, spread_rows)
        return
    widths = [max(map(len, column)) for column in zip(header, *rows, *spread_rows, strict=True)]
    for row in [header, *rows, *spread_rows]:
        print("  ".join(map(str.rjust, row, widths)))


def _print_rich(header: list[str], rows: list[list[str]], spread_rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*[name.replace("/", "/\n") for name in header])
    for number, row in enumerate(rows, start=1):
        table.add_row(*row, end_section=number == len(rows))
    for row in spread_rows:
        table.add_row(*row, style="bold" if row[0] == "median" else None)
    Console().print(table)


def _text(scores: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.4f}" for name, value in scores.items())


def _log(text: str) -> None:
    if _is_first_host():
        print(text, file=sys.stderr, flush=True)


def _is_first_host() -> bool:
    import jax

    return jax.process_index() == 0
