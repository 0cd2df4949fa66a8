"""Run feature-based NER on an encoder's layers and compare F1 with BERT's published table."""

import argparse
import json

from bertjax.constraints import PositiveInt, checked

EPILOG = """\
examples:
  bertjax features --init runs/bert --data conll2003 --workdir runs/features
  bertjax features --init runs/bert --data conll2003 --workdir runs/features --seeds 5 \\
      --finetuned runs/ner --config.task.lstm_size=512
  bertjax features --init runs/mini --data conll2003 --workdir runs/features --recipe small \\
      --layers embeddings,last

A BiLSTM of two layers on the frozen encoder is trained for named entity recognition on CoNLL-2003
(Devlin et al. 2019, section 5.3, table 7). The input of each row is one or several encoder layers:
embeddings, second_to_last, last, sum_last_four, weighted_sum_last_four, concat_last_four,
weighted_sum_all; the weights of weighted sums are learned. --finetuned adds the row of a `bertjax
finetune --config configs/ner.py:conll2003` of the same encoder. --data is the folder of train.txt
and valid.txt.

Each row is a `bertjax finetune` in WORKDIR/ROW with a recipe of configs/ner.py; a
--config.FIELD=VALUE applies to all rows. The same command resumes the suite, and other --layers add
rows to it. Results are in the workdir: table.md and results.json (medians, spread, seeds).
"""


def main(argv: list[str]) -> None:
    """Runs the unfinished rows and prints the table."""
    from bertjax.config import split_overrides

    rest, overrides = split_overrides(argv)
    options = vars(_parser().parse_args(rest))
    options["layers"] = options["layers"].split(",") if options["layers"] else ()
    from bertjax.sweeps import features, run, table

    result = features.run_suite(**options, overrides=overrides)
    if result.scores:
        print(table.text(features.rows(result.scores)))
        print(json.dumps({"dev/f1": run.medians(result.scores, "dev/f1")}))
    result.check()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bertjax features",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--init", required=True, metavar="RUN", help="the pretrained run, as of bertjax finetune")
    add("--data", required=True, help="folder of CoNLL-2003")
    add("--workdir", required=True, help="output folder")
    add(
        "--layers",
        default="",
        help="rows, separated by commas (default: all for which the encoder has enough layers)",
    )
    add("--finetuned", default="", metavar="RUN", help="workdir of a fine-tuning, as one more row")
    add(
        "--seeds",
        action=checked(PositiveInt),
        default=3,
        metavar="N",
        help="number of seeds of each row (default 3)",
    )
    add("--recipe", default="", help="small or tiny (default: for a base-sized encoder)")
    add(
        "--parallel",
        action=checked(PositiveInt),
        default=1,
        metavar="N",
        help="number of rows at a time (default 1)",
    )
    add("--config", default="configs/ner.py", help="config file with the recipes")
    return parser
