"""Subcommands of `bertjax evaluate` for fine-tuned tasks: labelled tables, files of predictions."""

from typing import Any

from bertjax.commands import _flags

_TABLE = """\
examples:
  bertjax evaluate table --model runs/reviews --data new_reviews.csv
  bertjax evaluate table --model runs/reviews --data new_reviews.csv --output errors/ \\
      --metrics macro_f1 auc
  bertjax evaluate table --model imported_classifier/ --data reviews.parquet --text review \\
      --label stars --json

--model is a run of bertjax finetune --config task (classes, several labels or
scores), of which the seed with the median score is used, RUN/seed_N, or an
imported classifier. --data is a table (CSV, TSV, JSON lines, Parquet, Arrow) with
a label in each row; a label that the model does not have is an error. The columns
are those of the training, or have common names.

The metrics are those of the training, or --metrics, as in
config.task.eval_metrics. --output writes NAME.jsonl (every prediction),
NAME_classes.txt (precision, recall and F1 of each class) and NAME_confusion.tsv,
with matplotlib also .png, for a table NAME.csv.
"""

_PREDICTIONS = """\
examples:
  bertjax evaluate predictions mrpc --references glue/MRPC/dev.tsv --predictions MRPC.tsv
  bertjax evaluate predictions superglue_cb --references superglue/CB/val.jsonl \\
      --predictions CB.jsonl
  bertjax evaluate predictions squad --references squad/dev-v2.0.json --predictions pred.json
  bertjax evaluate predictions conll2003 --references conll2003/valid.txt --predictions ner.txt
  bertjax evaluate predictions conll2003 --predictions ner.txt
  bertjax evaluate predictions race --references RACE/dev --predictions pred.json
  bertjax evaluate predictions swag --references swag/val.csv --predictions answers.jsonl

Prints one JSON object. Metrics are fractions in [0, 1], except for SQuAD, where
they are percent.

GLUE tasks     cola sst2 mrpc stsb qqp mnli qnli rte wnli, book_review,
               chnsenticorp. References: a released file with labels.
               Predictions: two columns, index and prediction, the format of
               GLUE's server, as in WORKDIR/predictions/dev/ of bertjax
               finetune.
SuperGLUE      superglue_boolq superglue_cb superglue_copa superglue_multirc
               superglue_record superglue_rte superglue_wic superglue_wsc.
               References: a released file with labels. Predictions:
               JSON lines of {"idx": 0, "label": ...}, the format of
               SuperGLUE's server, as in WORKDIR/predictions/dev/ of bertjax
               finetune.
xnli mldoc     References: a labelled file with a column language, or a name with
               {language} for a file of each, such as 'mldoc/{language}.test'.
               Predictions: three columns, language, index in its language, and
               prediction, as in WORKDIR/predictions/dev/ of bertjax finetune.
squad          References: a file in SQuAD's layout. Predictions:
               {"QUESTION_ID": "answer"}, "" for no answer. Metrics of the
               official evaluate-v1.1 or evaluate-v2.0, by the version of the
               references; "rules" is squad1 or squad2.
squad1 squad2  As squad, with the metrics of this version.
conll2003      CoNLL columns, word first and tag last. Without references, the
               last two columns are the reference tag and the predicted tag, as
               in the input of conlleval. IOB1 and IOB2 tags, also invalid
               sequences, are scored as in that script. It does not support E
               and S of BIOES; these are scored as in seqeval's default mode and
               the Python ports of the script: B and S start an entity, E and S
               end one; I and E also start one after O, E, S or another type; an
               entity without E ends before the next start or O.
race           References: the folder of a split. Predictions: {"high1.txt-0":
               "B", ...}, with the id of the article and the index of the
               question, from 0; A to D, or 0 to 3. Or JSON lines of {"id":
               "high1.txt-0", "prediction": "B"}.
swag           References: a released file with labels. Predictions: as for
               race; the id of a question is the index of its row, from 0.
"""


def _table(arguments) -> dict[str, float]:
    from bertjax.inference import evaluation
    from bertjax.runtime.progress import progress_display

    columns = ("text", "text_pair", "label", "label_separator")
    names = (*columns, "metrics", "batch_size", "precision", "output")
    options = {name: getattr(arguments, name) for name in names}
    with progress_display() as display:
        return evaluation.evaluate(
            "table", arguments.model, arguments.data, progress=display.update, **options
        )


def _predictions(arguments) -> dict[str, Any]:
    from bertjax.inference import evaluation

    return evaluation.predictions(
        arguments.task, arguments.predictions, references=arguments.references
    )


def add_table(commands) -> None:
    """Adds `table`, whose `run` returns the results."""
    parser = _flags.add_command(
        commands,
        "table",
        "Score a fine-tuned classifier or regression on a labelled table.",
        _TABLE,
        _table,
        renamed={"--input": "--data", "--eval_metrics": "--metrics"},
    )
    add = parser.add_argument
    _flags.add_model(parser, "a run of --config task, or an imported or Hugging Face classifier")
    add("--data", required=True, metavar="FILE", help="table with a label in each row")
    for name, content in {"text": "text", "text_pair": "second text", "label": "label"}.items():
        help_text = f"column of the {content} (default: as in training, or detected)"
        add(f"--{name}", default="", metavar="COLUMN", help=help_text)
    help_text = "text between the labels of a cell (default: as in training)"
    add("--label_separator", default="", metavar="TEXT", help=help_text)
    help_text = "metrics of config.task.eval_metrics (default: as in training)"
    add("--metrics", nargs="+", default=(), metavar="NAME", help=help_text)
    help_text = "also write predictions, a table of the classes and their confusion matrix"
    add("--output", metavar="DIR", default="", help=help_text)
    _flags.add_batch_size(parser, 32, "sequences")
    _flags.add_precision(parser, "auto")
    _flags.add_json(parser)


def add_predictions(commands) -> None:
    """Adds `predictions`, whose `run` returns the results."""
    parser = _flags.add_command(
        commands,
        "predictions",
        "Score files of predictions with the official metrics of a task.",
        _PREDICTIONS,
        _predictions,
    )
    parser.set_defaults(json=True)
    add = parser.add_argument
    add("task", metavar="TASK", help="the task, see below")
    add("--references", metavar="PATH", help="released file with the correct answers; see below")
    add("--predictions", required=True, metavar="FILE", help="file of predictions")
