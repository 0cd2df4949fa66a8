"""Fine-tune an encoder on all GLUE tasks and compare its scores with published ones."""

import argparse
import json
import sys

from bertjax.constraints import PositiveInt, checked

EPILOG = """\
examples:
  bertjax glue --init runs/bert --data glue --workdir runs/glue
  bertjax glue --init runs/mini --data glue --workdir runs/glue --recipe small --seeds 5
  bertjax glue --init runs/roberta --data glue --workdir runs/glue --recipe roberta --from_mnli
  bertjax glue --init runs/bert --data glue --workdir runs/glue --tasks cola,rte --grid --parallel 4

Each task is a `bertjax finetune` in WORKDIR/TASK with the recipe of configs/glue.py; a
--config.FIELD=VALUE applies to all tasks. --grid runs batch sizes 16 and 32, learning rates 5e-5,
3e-5 and 2e-5 and 2 to 4 epochs, each with all seeds, and reports the point with the best median dev
score, which is optimistic, since the same score selects the point. With --from_mnli, RTE, STS-B and
MRPC are initialised from the fine-tuned MNLI encoder. --parallel N runs N at a time, each with one
GPU or an equal share of the cores.

Results are in the workdir: table.md and results.json (medians, spread, seeds, the average as on the
leaderboard), and submission.zip for the evaluation server. The same command resumes the suite.
"""


def main(argv: list[str]) -> None:
    """Runs the unfinished tasks and prints the table."""
    from bertjax.config import split_overrides

    rest, overrides = split_overrides(argv)
    options = vars(_parser().parse_args(rest))
    options["tasks"] = options["tasks"].split(",") if options["tasks"] else ()
    from bertjax.sweeps import glue, glue_table, table

    result = glue.run_suite(**options, overrides=overrides)
    if scores := result.scores:
        print(table.text(glue_table.rows(scores)))
        if missing := glue_table.missing_files(scores):
            archive = f"{options['workdir']}/submission.zip"
            print(
                f"{archive} lacks files that the server requires: {', '.join(missing)}",
                file=sys.stderr,
            )
        print(json.dumps({"average": glue_table.average(scores), "tasks": len(scores)}))
    result.check()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bertjax glue",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--init", required=True, metavar="RUN", help="the pretrained run, as of bertjax finetune")
    add("--data", required=True, help="folder of GLUE, or tfds:DIR")
    add("--workdir", required=True, help="output folder")
    add("--tasks", default="", help="names separated by commas (default: all in the data)")
    add(
        "--seeds",
        action=checked(PositiveInt),
        default=3,
        metavar="N",
        help="number of seeds of each run (default 3)",
    )
    add("--grid", action="store_true", help="search batch sizes, learning rates and epochs")
    add("--recipe", default="", help="small, tiny, roberta, albert or electra (default: BERT's)")
    add(
        "--from_mnli",
        action="store_true",
        help="initialise RTE, STS-B and MRPC from the fine-tuned MNLI encoder",
    )
    add(
        "--parallel",
        action=checked(PositiveInt),
        default=1,
        metavar="N",
        help="number of runs at a time (default 1)",
    )
    add("--config", default="configs/glue.py", help="config file with the recipes")
    return parser
