"""Fine-tune a pretrained encoder on a task with one or several seeds, and evaluate it."""

import argparse
import shlex
import sys
from typing import Any

from bertjax.commands.pretrain import DISTRIBUTED, is_first_host, log_on_first_host
from bertjax.constraints import PositiveInt, checked

EPILOG = """\
examples:
  bertjax finetune --config configs/glue.py:mrpc --init runs/bert --data glue --workdir runs/mrpc
  bertjax finetune --config configs/glue.py:cola,small --init runs/mini@best --data glue \\
      --workdir runs/cola --seeds 5 --config.optimizer.learning_rate=3e-4
  bertjax finetune --config configs/glue.py:rte+mrpc --init runs/bert --data glue \\
      --workdir runs/rte_and_mrpc
  bertjax finetune --config configs/glue.py:rte --init random:runs/bert --data tfds:/data/tfds \\
      --workdir runs/rte_random

--init is a pretraining run: RUN for its newest checkpoint, RUN@STEP or RUN@best for another one,
random:RUN for its architecture and tokenizer with untrained weights; or RUN/seed_N, a seed of a
fine-tuning run that kept its checkpoints (--config.keep_checkpoints=true). --data is the folder of
the task's files: for GLUE the one with CoLA/, SST-2/, MRPC/ ... as released, or tfds:DIR with
glue/TASK prepared as ArrayRecord.

In the workdir: results.json (every seed and epoch, median and spread), summary.json, predictions/
(files for the evaluation server, from the seed with the median dev score) and seed_N/ (metrics and
predictions of that seed). The same command resumes the run; a larger --seeds adds seeds.
"""


def main(argv: list[str]) -> None:
    """Fine-tunes every seed that is not finished and prints the scores of all."""
    from bertjax.config import FINE_TUNING, load_config, split_overrides

    rest, overrides = split_overrides(argv)
    arguments = _parser().parse_args(rest)
    recipe = load_config(arguments.config, overrides, FINE_TUNING)
    from bertjax import build
    from bertjax.errors import Interrupted
    from bertjax.runs import finetune
    from bertjax.runtime import distributed

    build.check(recipe)
    distributed.connect(arguments.distributed)
    try:
        results = finetune.finetune(
            recipe,
            init=arguments.init,
            data=arguments.data,
            workdir=arguments.workdir,
            num_seeds=arguments.seeds,
            log=log_on_first_host,
        )
    except Interrupted as stop:
        log_on_first_host(f"{stop}; the same command resumes it: {_command(argv)}")
        raise SystemExit(stop.exit_code) from None
    if is_first_host():
        _print_table(results)
        log_on_first_host(_outcome(recipe, arguments, argv, results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bertjax finetune",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config",
        required=True,
        metavar="CONFIG",
        help="such as glue:mrpc (see bertjax configs), or a file",
    )
    parser.add_argument("--init", required=True, help="RUN, RUN@STEP, RUN@best or random:RUN")
    parser.add_argument("--data", required=True, help="folder of the task, or tfds:DIR")
    parser.add_argument("--workdir", required=True, help="folder for all outputs")
    parser.add_argument("--distributed", action="store_true", help=DISTRIBUTED)
    parser.add_argument(
        "--seeds",
        action=checked(PositiveInt),
        default=1,
        help="number of seeds, starting at config.seed (default 1)",
    )
    return parser


def _command(argv: list[str]) -> str:
    return shlex.join(["bertjax", "finetune", *argv])


def _outcome(
    recipe, arguments: argparse.Namespace, argv: list[str], results: list[dict[str, Any]]
) -> str:
    """Returns the paths of the results and the command of the next stage."""
    from bertjax.io import storage
    from bertjax.overrides import with_overrides
    from bertjax.runs import multitask
    from bertjax.runs import results as runs_results
    from bertjax.tasks.glue.head import BETWEEN

    workdir = arguments.workdir.rstrip("/")
    seed = f"{workdir}/seed_{runs_results.median_seed(results)}"
    results_line = f"results  {workdir}/results.json, summary.json, predictions/, seed_N/"
    if storage.to_path(f"{seed}/checkpoints").exists():
        task = recipe.task.dataset.partition(BETWEEN)[0] if multitask.is_multitask(recipe) else ""
        predict = ["bertjax", "predict", "--init", seed, *(["--task", task] if task else [])]
        return f"{results_line}\nnext     {shlex.join(predict)} --input TEXTS"
    kept = f"{workdir}_kept"
    replaced = {arguments.workdir: kept, f"--workdir={arguments.workdir}": f"--workdir={kept}"}
    words = [replaced.get(word, word) for word in argv]
    return (
        f"{results_line}\nno checkpoint was kept; to predict or export, keep them:\n"
        f"next     {_command(with_overrides(words, {'keep_checkpoints': True}))}"
    )


def _print_table(results: list[dict[str, Any]]) -> None:
    """Prints the scores of each seed and their spread."""
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
