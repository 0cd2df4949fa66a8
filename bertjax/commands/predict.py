"""Predict with a fine-tuned model: labels, answers, probabilities."""

import itertools
import json
import sys

from bertjax.commands import _flags
from bertjax.errors import UserError

GROUP = "Evaluate"

EPILOG = """\
examples:
  echo 'a charming film' | bertjax predict --model runs/sst2/seed_0
  bertjax predict --model runs/mrpc/seed_0 --input pairs.tsv > predictions.jsonl
  bertjax predict --model runs/squad1/seed_0 --input questions.jsonl
  bertjax predict --model runs/reviews --input new_reviews.csv

--model is a fine-tuning run that kept its checkpoints (keep_checkpoints, the
default of --config task), of which the seed with the median score is used,
RUN/seed_N, or an imported classifier. The input is a CSV, Parquet or Arrow
table with the columns of a task of your own, or has one example per line,
tab-separated or as a JSON object. Tab-separated lines may have a header, such as
that of the training table: a first line with the names of the texts.
  GLUE      one or two texts, or {"sentence1": "...", "sentence2": "..."}, keys
            as in TFDS
  SQuAD     question and context, or {"question": "...", "context": "..."}
  CoNLL     words separated by spaces, or {"words": ["...", "..."]}
  RACE      {"context": "...", "question": "...", "choices": ["...", ...]}
  a table   its texts, or an object with its columns (and "choices")

The output has one JSON object per row or non-blank line, in order: the input and
the predictions. A question of SQuAD 2.0 has the answer "" if its null_odds exceed
config.data.null_threshold, or 0. Texts longer than config.data.max_seq_length
or the model's positions are truncated, and the object has "truncated": true;
likewise questions of SQuAD longer than config.data.max_query_length, while long
contexts are read in windows. An imported classifier keeps the names of its
classes.
"""

_BATCHES_PER_CHUNK = 16
"""Number of batches within which lines are sorted by length."""


def main(argv: list[str]) -> None:
    """Predicts every line of the input and prints one JSON object for each."""
    arguments = parser().parse_args(argv)
    from bertjax.io import storage

    if arguments.input is not None and not storage.to_path(arguments.input).is_file():
        raise UserError(
            f"no file {arguments.input}: --input expects a file with one example per line, or a "
            "table"
        )
    from bertjax.huggingface import run_cache
    from bertjax.inference import predict
    from bertjax.overrides import print_note

    lines = predict.read_lines(arguments.input)
    predictor = predict.load(
        run_cache.find_run(arguments.model),
        task=arguments.task,
        data=arguments.data,
        precision=arguments.precision,
    )
    lines = predict.rows_below_header(lines, predictor.input_fields, print_note)
    while group := list(itertools.islice(lines, arguments.batch_size * _BATCHES_PER_CHUNK)):
        for answer in predictor.predict(group, arguments.batch_size):
            print(json.dumps(answer, ensure_ascii=False))
        sys.stdout.flush()


def parser() -> _flags.Parser:
    """Returns the parser of the command line."""
    parser = _flags.Parser("bertjax predict", __doc__, EPILOG, renamed={"--init": "--model"})
    add = parser.add_argument
    _flags.add_model(parser, "a fine-tuning RUN, RUN/seed_N, or an imported or Hugging Face model")
    add(
        "--input",
        metavar="FILE",
        help="lines of text, JSON objects, or a table (default: standard input)",
    )
    add("--task", default="", metavar="NAME", help="the task, if the run was fine-tuned on several")
    add(
        "--data",
        default="",
        metavar="DIR",
        help="folder of config.data.knowledge, for runs with a knowledge graph",
    )
    _flags.add_precision(parser)
    _flags.add_batch_size(parser, 32, "sequences")
    return parser
