"""Fine-tune an encoder on all tasks of a benchmark: GLUE, SuperGLUE, feature-based NER."""

import json
import sys
from typing import TYPE_CHECKING

from bertjax.commands import _flags

if TYPE_CHECKING:
    import argparse

GROUP = "Train"
COMMANDS = ("glue", "superglue", "features")

_GLUE = """\
examples:
  bertjax suite glue --init runs/bert --data glue --workdir runs/glue
  bertjax suite glue --init runs/mini --data glue --workdir runs/glue --recipe small --seeds 5
  bertjax suite glue --init runs/roberta --data glue --workdir runs/glue --recipe roberta \\
      --from_mnli
  bertjax suite glue --init runs/bert --data glue --workdir runs/glue --tasks cola,rte --grid \\
      --parallel 4

Each task is a `bertjax finetune` in WORKDIR/TASK with the recipe of configs/glue.py; a
--config.FIELD=VALUE applies to all tasks. --grid runs batch sizes 16 and 32, learning rates 5e-5,
3e-5 and 2e-5 and 2 to 4 epochs, each with all seeds, and reports the point with the best median dev
score, which is optimistic, since the same score selects the point. With --from_mnli, RTE, STS-B and
MRPC are initialised from the fine-tuned MNLI encoder. --parallel N runs N at a time, each with one
GPU or an equal share of the cores.

Results are in the workdir: table.md and results.json (medians, spread, seeds, the average as on the
leaderboard), and submission.zip for the evaluation server. The same command resumes the suite, and
other --tasks add rows to it; a workdir belongs to one encoder and one set of recipes.
"""

_SUPERGLUE = """\
examples:
  bertjax suite superglue --init runs/bert --data superglue --workdir runs/superglue
  bertjax suite superglue --init runs/mini --data superglue --workdir runs/superglue \\
      --recipe small --seeds 5 --tasks boolq,rte

Each task is a `bertjax finetune` in WORKDIR/TASK with the recipe of configs/superglue.py; a
--config.FIELD=VALUE applies to all tasks. --data is the folder of the released archive, with
BoolQ/train.jsonl etc. --parallel N runs N at a time, each with one GPU or an equal share of the
cores.

Results are in the workdir: table.md and results.json (medians, spread, seeds, the average as on the
leaderboard), and submission.zip for the evaluation server. The same command resumes the suite, and
other --tasks add rows to it; a workdir belongs to one encoder and one set of recipes.
"""

_FEATURES = """\
examples:
  bertjax suite features --init runs/bert --data conll2003 --workdir runs/features
  bertjax suite features --init runs/bert --data conll2003 --workdir runs/features --seeds 5 \\
      --finetuned runs/ner --config.task.lstm_size=512
  bertjax suite features --init runs/mini --data conll2003 --workdir runs/features \\
      --recipe small --layers embeddings,last

A BiLSTM of two layers on the frozen encoder is trained for named entity recognition on CoNLL-2003
(Devlin et al. 2019, section 5.3, table 7). The input of each row is one or several encoder layers:
embeddings, second_to_last, last, sum_last_four, weighted_sum_last_four, concat_last_four,
weighted_sum_all; the weights of weighted sums are learned. --finetuned adds the row of a `bertjax
finetune --config ner:conll2003` of the same encoder. --data is the folder of train.txt and
valid.txt.

Each row is a `bertjax finetune` in WORKDIR/ROW with a recipe of configs/ner.py; a
--config.FIELD=VALUE applies to all rows. The same command resumes the suite, and other --layers add
rows to it. Results are in the workdir: table.md and results.json (medians, spread, seeds).
"""

_OPTIONS = ("init", "data", "workdir", "seeds", "recipe", "parallel", "config")


def main(argv: list[str]) -> None:
    """Runs the unfinished fine-tunings of a suite and prints the table."""
    from bertjax.config import split_overrides

    rest, overrides = split_overrides(argv)
    arguments = parser().parse_args(rest)
    options = {name: getattr(arguments, name) for name in _OPTIONS} | {"overrides": overrides}
    arguments.run(arguments, options)


def _glue(arguments: "argparse.Namespace", options: dict) -> None:
    from bertjax.sweeps import glue, glue_table, table

    result = glue.run_suite(
        **options,
        tasks=arguments.tasks.split(",") if arguments.tasks else (),
        grid=arguments.grid,
        from_mnli=arguments.from_mnli,
    )
    if scores := result.scores:
        print(table.text(glue_table.rows(scores)))
        _print_missing(arguments.workdir, glue_table.missing_files(scores))
        print(json.dumps({"average": glue_table.average(scores), "tasks": len(scores)}))
    result.check()


def _superglue(arguments: "argparse.Namespace", options: dict) -> None:
    from bertjax.sweeps import superglue, table

    result = superglue.run_suite(
        **options, tasks=arguments.tasks.split(",") if arguments.tasks else ()
    )
    if scores := result.scores:
        print(table.text(superglue.rows(scores)))
        _print_missing(arguments.workdir, superglue.missing_files(scores))
        print(json.dumps({"average": superglue.average(scores), "tasks": len(scores)}))
    result.check()


def _print_missing(workdir: str, missing: list[str]) -> None:
    if missing:
        print(
            f"{workdir}/submission.zip lacks files that the server requires: {', '.join(missing)}",
            file=sys.stderr,
        )


def _features(arguments: "argparse.Namespace", options: dict) -> None:
    from bertjax.sweeps import features, run, table

    result = features.run_suite(
        **options,
        layers=arguments.layers.split(",") if arguments.layers else (),
        finetuned=arguments.finetuned,
    )
    if result.scores:
        print(table.text(features.rows(result.scores)))
        print(json.dumps({"dev/f1": run.medians(result.scores, "dev/f1")}))
    result.check()


def parser() -> _flags.Parser:
    """Returns the parser of the command line."""
    parser = _flags.Parser("bertjax suite", __doc__)
    commands = parser.add_commands()
    _add_glue(commands)
    _add_superglue(commands)
    _add_features(commands)
    return parser


def _add_glue(commands) -> None:
    parser = _flags.add_command(
        commands,
        "glue",
        "Fine-tune an encoder on all GLUE tasks and compare its scores with published ones.",
        _GLUE,
        _glue,
    )
    _add_suite(parser, "folder of GLUE, or tfds:DIR", "task", "configs/glue.py")
    add = parser.add_argument
    add(
        "--recipe",
        default="",
        metavar="NAME",
        help="small, tiny, roberta, albert or electra (default: BERT's)",
    )
    _add_tasks(parser)
    add("--grid", action="store_true", help="search batch sizes, learning rates and epochs")
    add(
        "--from_mnli",
        action="store_true",
        help="initialise RTE, STS-B and MRPC from the fine-tuned MNLI encoder",
    )


def _add_superglue(commands) -> None:
    parser = _flags.add_command(
        commands,
        "superglue",
        "Fine-tune an encoder on all SuperGLUE tasks and write the files of a submission.",
        _SUPERGLUE,
        _superglue,
    )
    _add_suite(parser, "folder of SuperGLUE", "task", "configs/superglue.py")
    _add_small_recipes(parser)
    _add_tasks(parser)


def _add_tasks(parser: _flags.Parser) -> None:
    parser.add_argument(
        "--tasks",
        default="",
        metavar="NAMES",
        help="names separated by commas (default: all in the data)",
    )


def _add_small_recipes(parser: _flags.Parser) -> None:
    parser.add_argument(
        "--recipe",
        default="",
        metavar="NAME",
        help="small or tiny (default: for a base-sized encoder)",
    )


def _add_features(commands) -> None:
    parser = _flags.add_command(
        commands,
        "features",
        "Run feature-based NER on an encoder's layers and compare F1 with BERT's table 7.",
        _FEATURES,
        _features,
    )
    _add_suite(parser, "folder of CoNLL-2003", "row", "configs/ner.py")
    _add_small_recipes(parser)
    add = parser.add_argument
    add(
        "--layers",
        default="",
        metavar="NAMES",
        help="rows, separated by commas (default: all for which the encoder has enough layers)",
    )
    add(
        "--finetuned",
        default="",
        metavar="RUN",
        help="workdir of a fine-tuning run, added as a row",
    )


def _add_suite(parser: _flags.Parser, data: str, unit: str, config: str) -> None:
    """Adds the options that all suites have."""
    add = parser.add_argument
    add("--init", required=True, metavar="RUN", help="the pretrained run, as of bertjax finetune")
    add("--data", required=True, metavar="DIR", help=data)
    add("--workdir", required=True, metavar="DIR", help="output folder")
    _flags.add_seeds(parser, 3, unit)
    _flags.add_parallel(parser)
    add("--config", default=config, metavar="FILE", help="config file with the recipes")
