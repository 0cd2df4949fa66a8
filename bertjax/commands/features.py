"""Run feature-based NER on an encoder's layers and compare F1 with BERT's published table."""

import argparse
import json
import pathlib
from collections.abc import Sequence

from bertjax.constraints import PositiveInt, checked
from bertjax.errors import UserError

EPILOG = """\
examples:
  bertjax features --init runs/bert --data conll2003 --workdir runs/features
  bertjax features --init runs/bert --data conll2003 --workdir runs/features --seeds 5 \\
      --finetuned runs/ner --config.task.lstm_size=512
  bertjax features --init runs/mini --data conll2003 --workdir runs/features --recipe small \\
      --layers embeddings,last

The encoder stays as it is; on it a BiLSTM of two layers learns to name the entities of CoNLL-2003
(Devlin et al. 2019, section 5.3, table 7). A row is made of one layer or of several: embeddings,
second_to_last, last, sum_last_four, weighted_sum_last_four, concat_last_four, weighted_sum_all; the
weights of weighted sums are learned. --finetuned takes in the row of a `bertjax finetune --config
configs/ner.py:conll2003` of the same encoder. --data is the folder of train.txt and valid.txt.

Each row is a `bertjax finetune` of its own, in WORKDIR/ROW, with a recipe of configs/ner.py; a
--config.FIELD=VALUE goes to all of them. The same command continues where it was stopped, and more
rows can be asked of the same folder. In the workdir: table.md and results.json (medians, spread,
seeds).
"""


def main(argv: list[str]) -> None:
    """Runs what is missing, then prints the table."""
    from bertjax.config import split_overrides

    rest, overrides = split_overrides(argv)
    arguments = _parser().parse_args(rest)
    recipe = ",".join(filter(None, (_FEATURES, arguments.recipe)))
    _check_recipe(f"{arguments.config}:{recipe}", overrides)
    from bertjax.runs import bucket_sync
    from bertjax.runs.workdir import claim
    from bertjax.runtime.progress import progress_display
    from bertjax.runtime.signals import sigterm_as_interrupt
    from bertjax.sweeps import layers as sweeps_layers
    from bertjax.sweeps import processes as sweeps_processes

    workdir = bucket_sync.on_this_machine(arguments.workdir, alone=True)
    asked = arguments.layers.split(",") if arguments.layers else ()
    layers = sweeps_layers.layers_of(arguments.init, asked)
    beside = arguments.finetuned
    more = [sweeps_layers.fine_tuned(beside, arguments.init)] if beside else []
    runs = sweeps_layers.plan(layers, workdir)
    settled = {name: getattr(arguments, name) for name in ("init", "data", "recipe")}
    settled["overrides"] = [f"{name}={value}" for name, value in overrides]
    mirrored = bucket_sync.synced(workdir, arguments.workdir)
    with claim(workdir, {"features": settled}), mirrored, sigterm_as_interrupt():
        wanted = [_process(arguments, recipe, run, overrides) for run in runs]
        with progress_display() as display:
            processes = sweeps_processes.Processes(
                works=[process.work for process in wanted],
                seeds=arguments.seeds,
                parallel=arguments.parallel,
                display=display,
            )
            failed = processes.run(wanted)
        scores = sweeps_layers.collect(workdir, more)
        if scores:
            _write(workdir, scores)
    sweeps_processes.check_all_done(failed, len(runs))


_FEATURES = "conll2003,features"


def _check_recipe(recipe: str, overrides: Sequence) -> None:
    """Refuses a mistake before the first run starts."""
    from bertjax import build
    from bertjax.config import FINE_TUNING, load_config

    if "task.layers" in dict(overrides):
        raise UserError("--config.task.layers is what tells rows apart: choose them with --layers")
    build.check(load_config(recipe, overrides, FINE_TUNING))


def _process(arguments: argparse.Namespace, recipe: str, run, overrides: Sequence):
    from bertjax.sweeps import processes as sweeps_processes

    words = sweeps_processes.command(
        config=f"{arguments.config}:{recipe}",
        init=arguments.init,
        data=arguments.data,
        workdir=run.workdir,
        seeds=arguments.seeds,
    )
    fields = (("task.layers", run.row), *overrides)
    words += [f"--config.{name}={value}" for name, value in fields]
    return sweeps_processes.Process(run.row, run.workdir, words)


def _write(workdir: pathlib.Path, scores: Sequence) -> None:
    from bertjax.io.files import write_json
    from bertjax.sweeps import glue_table
    from bertjax.sweeps import layers as sweeps_layers

    table = sweeps_layers.rows(scores)
    (workdir / "table.md").write_text(glue_table.markdown(table), encoding="utf-8")
    write_json(workdir / "results.json", sweeps_layers.content(scores))
    print(glue_table.text(table))
    medians = {score.run.row: score.medians["dev/f1"] for score in scores}
    print(json.dumps({"dev/f1": medians}))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bertjax features",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--init", required=True, metavar="RUN", help="as of bertjax finetune")
    add("--data", required=True, help="folder of CoNLL-2003")
    add("--workdir", required=True, help="folder for what comes out")
    add(
        "--layers", default="", help="names with commas between (default: all that the encoder has)"
    )
    add("--finetuned", default="", metavar="RUN", help="workdir of a fine-tuning, as one more row")
    add(
        "--seeds",
        action=checked(PositiveInt),
        default=3,
        metavar="N",
        help="of each row (default 3)",
    )
    add("--recipe", default="", help="small or tiny (default: for a base-sized encoder)")
    add(
        "--parallel",
        action=checked(PositiveInt),
        default=1,
        metavar="N",
        help="rows side by side (default 1)",
    )
    add("--config", default="configs/ner.py", help="where the recipes are")
    return parser
