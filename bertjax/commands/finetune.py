"""Fine-tune a pretrained encoder on a task with one or several seeds, and evaluate it."""

import shlex
import sys
from typing import TYPE_CHECKING, Any

from bertjax.commands import _flags
from bertjax.commands.pretrain import is_first_host, log_on_first_host

if TYPE_CHECKING:
    import argparse

    from ml_collections import ConfigDict

GROUP = "Train"

EPILOG = """\
examples:
  bertjax finetune --config glue:mrpc --init runs/bert --data glue --workdir runs/mrpc
  bertjax finetune --config glue:cola,small --init runs/mini@best --data glue \\
      --workdir runs/cola --seeds 5 --config.optimizer.learning_rate=3e-4
  bertjax finetune --config glue:rte+mrpc --init runs/bert --data glue \\
      --workdir runs/rte_and_mrpc
  bertjax finetune --config glue:rte --init random:runs/bert --data tfds:/data/tfds \\
      --workdir runs/rte_random
  bertjax finetune --config task --data reviews.csv --text text --label category \\
      --init runs/bert --workdir runs/reviews
  bertjax finetune --config task:small --data pairs/ --text question --text_pair answer \\
      --label score --init runs/mini --workdir runs/pairs --config.num_train_epochs=10 \\
      --config.early_stopping_patience=2
  bertjax finetune --config pairs --data pairs.jsonl --text query --text_pair answer \\
      --init runs/bert --workdir runs/pairs
  bertjax finetune --config cross_encoder --data triples.jsonl --init runs/bert \\
      --workdir runs/cross_encoder
  bertjax finetune --config superglue:boolq --init runs/bert --data superglue \\
      --workdir runs/boolq
  bertjax finetune --config squad:squad2 --init runs/bert --data squad --workdir runs/squad2
  bertjax finetune --config ner:conll2003 --init runs/bert --data conll2003 --workdir runs/ner

--init is a pretraining run: RUN for its newest checkpoint, RUN@STEP or RUN@best for another one,
random:RUN for its architecture and tokenizer with untrained weights; a folder that save_pretrained
of transformers wrote; or RUN/seed_N, a seed of a fine-tuning run that kept its checkpoints
(--config.keep_checkpoints=true). --data is the folder of the task's files as released: for GLUE the
one with CoLA/, SST-2/, MRPC/ ..., or tfds:DIR with glue/TASK prepared as ArrayRecord; for SuperGLUE
the one with BoolQ/, CB/, COPA/ ...; for XNLI that of XNLI-1.0/ and XNLI-MT-1.0/; for SQuAD the one
of train-v1.1.json or train-v2.0.json; for CoNLL-2003 that of train.txt; for RACE that of train/ and
dev/; for SWAG that of train.csv. `bertjax configs` lists the configs: task, pairs, cross_encoder,
colbert, glue, superglue, multilingual, squad, ner, race (also SWAG), kbert, tinybert_glue.

With --config task, --data is a table of your own (CSV, TSV, JSON lines, Parquet, Arrow), a folder
with train.*, dev.* (or validation.*) and test.* as tables, or a folder of save_to_disk of
`datasets`. Without a dev file, 10% of the rows are held out, the same share of every class
(--config.data.validation_fraction, --config.data.split_seed). Labels are classes; scores if they
are numbers and some are not whole; or several per text if they are lists, or if
--config.data.label_separator is set. --config.task.problem_type overrides this.
--config.task.eval_metrics="('macro_f1','auc')" chooses metrics, of which the first determines the
best epoch. task:tags classifies words (columns of words and tags) or finds spans
([{"start": 0, "end": 4, "label": "PER"}]) in texts, task:choices chooses among answers,
task:answers extracts them from contexts (--text_pair).

With --config pairs, the encoder is trained to embed texts, from such tables of pairs (--text,
--text_pair): in-batch negatives (also with a column `negative`), or with scores (--label) CoSENT or
--config.task.loss_type=cosine. Of one column of texts, with --config pairs:simcse, each text is its
own positive; a dev file with pairs is then required. The dev split is evaluated by Spearman's
correlation if it has scores, else by the rank of the positive. The run is a model for bertjax
embed, evaluate sts, evaluate retrieval, predict and export.

With --config cross_encoder, a query and a passage are read together and get one score, for
reranking. The tables are those of pairs, with hard negatives (negative, or negative_1, negative_2
...) or scores: binary cross entropy, or --config.task.loss_type=softmax over a positive and its
negatives. The run is a model for predict, export and evaluate retrieval --reranker. With --config
colbert, queries and documents are compared token by token (late interaction), with negatives of the
batch; the run is a model for predict and evaluate retrieval.

In the workdir: results.json (every seed and epoch, median and spread), summary.json, predictions/
(files for the evaluation server, from the seed with the median dev score; with --config task every
example, a table of the classes and the confusion matrix) and seed_N/ (metrics and predictions of
that seed). The same command resumes the run, also within an epoch, from a checkpoint of every
--config.checkpoint_every steps; a larger --seeds adds seeds.
"""


def main(argv: list[str]) -> None:
    """Fine-tunes every seed that is not finished and prints the scores of all."""
    from bertjax.config import FINE_TUNING, load_config, split_overrides

    rest, overrides = split_overrides(argv)
    arguments = parser().parse_args(rest)
    recipe = _with_columns(load_config(arguments.config, overrides, FINE_TUNING), arguments)
    if arguments.print_config:
        _flags.print_config(recipe)
        return
    _flags.require(arguments, "init", "data", "workdir")
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
        log_on_first_host(_result_message(recipe, arguments, argv, results))


def parser() -> _flags.Parser:
    """Returns the parser of the command line."""
    parser = _flags.Parser("bertjax finetune", __doc__, EPILOG)
    _flags.add_config(parser, "glue:mrpc")
    _flags.add_print_config(parser)
    add = parser.add_argument
    add(
        "--init",
        metavar="MODEL",
        help="RUN, RUN@STEP, RUN@best, random:RUN or a Hugging Face folder",
    )
    add("--data", metavar="DIR", help="folder or table of the task, or tfds:DIR")
    add(
        "--text",
        metavar="COLUMN",
        help="text column, for --config task, pairs, cross_encoder or colbert (default: detected)",
    )
    add(
        "--text_pair",
        metavar="COLUMN",
        help="column of the second text, for the same configs",
    )
    add("--label", metavar="COLUMN", help="column of the label or score (default: detected)")
    add("--workdir", metavar="DIR", help="folder for all outputs")
    add("--distributed", action="store_true", help=_flags.DISTRIBUTED)
    _flags.add_seeds(parser, 1, "run, starting at config.seed")
    return parser


def _with_columns(recipe: "ConfigDict", arguments: "argparse.Namespace") -> "ConfigDict":
    """The recipe with the columns given by --text, --text_pair and --label."""
    from bertjax.config import replace_fields
    from bertjax.errors import UserError

    named = {name: getattr(arguments, name) for name in ("text", "text_pair", "label")}
    named = {name: column for name, column in named.items() if column is not None}
    for name, column in named.items():
        if name not in recipe.data:
            raise UserError(
                f"--{name}: got {column!r}, expected none with --config {arguments.config}, whose "
                "columns are fixed; leave it out, or use --config task or pairs"
            )
    return replace_fields(recipe, {f"data.{name}": column for name, column in named.items()})


def _command(argv: list[str]) -> str:
    return shlex.join(["bertjax", "finetune", *argv])


_USES = {
    "pairs": "embed --model {} --input TEXTS --truncate --output vectors.npy",
    "cross_encoder": "evaluate retrieval --model bm25 --reranker {} --data BEIR_FOLDER",
    "colbert": "evaluate retrieval --model {} --data BEIR_FOLDER",
}
"""The command for the model of a task, where it is not `predict`."""


def _result_message(
    recipe, arguments: "argparse.Namespace", argv: list[str], results: list[dict[str, Any]]
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
    if storage.to_path(f"{workdir}/predictions/dev_classes.txt").exists():
        results_line += f"\nclasses  {workdir}/predictions/dev_classes.txt"
    if storage.to_path(f"{seed}/checkpoints").exists():
        task = recipe.task.dataset.partition(BETWEEN)[0] if multitask.is_multitask(recipe) else ""
        use = _USES.get(
            recipe.task.name, f"predict --model {{}}{task and ' --task ' + task} --input TEXTS"
        )
        return f"{results_line}\nnext     bertjax {use.format(shlex.quote(seed))}"
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
