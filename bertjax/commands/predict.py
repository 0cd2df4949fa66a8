"""Run inference with a fine-tuned run: labels, answers and probabilities, as JSON lines."""

import argparse
import itertools
import json
import sys

from bertjax.constraints import PositiveInt, checked
from bertjax.errors import UserError

EPILOG = """\
examples:
  echo 'a charming film' | bertjax predict --init runs/sst2/seed_0
  bertjax predict --init runs/mrpc/seed_0 --input pairs.tsv > predictions.jsonl
  bertjax predict --init runs/squad1/seed_0 --input questions.jsonl

--init is a seed of a fine-tuning that kept its checkpoints (--config.keep_checkpoints=true), or an
imported classifier. A line holds what the task reads, with tabs between, or is a JSON object:
  GLUE      one or two texts, or {"sentence1": "...", "sentence2": "..."} as TFDS names them
  SQuAD     question and context, or {"question": "...", "context": "..."}
  CoNLL     words with spaces between, or {"words": ["...", "..."]}
  RACE      {"context": "...", "question": "...", "choices": ["...", "...", "...", "..."]}
Out comes a JSON object for each line, in order: the input and what the model says of it; a blank
line has none. A question of SQuAD 2.0 is answered with "" where its null_odds exceed
config.data.null_threshold, or 0. Texts longer than config.data.max_seq_length, or than the model's
positions, lose their end: the object of GLUE or RACE then has "truncated": true. So has that of a
question of SQuAD longer than config.data.max_query_length; its context is read in windows. The
classes of an imported classifier have the names that it came with.
"""

_BATCHES_AT_ONCE = 16
"""Lines are sorted by length among so many batches."""


def main(argv: list[str]) -> None:
    """Answers line by line."""
    arguments = _parser().parse_args(argv)
    from bertjax.io import storage

    if arguments.input is not None and not storage.to_path(arguments.input).is_file():
        raise UserError(f"no file {arguments.input}: --input requires one example a line")
    from bertjax.inference import predict
    from bertjax.io.file_kinds import JSON_LINES, TSV
    from bertjax.io.lines import read_text_lines

    found = read_text_lines(arguments.input, tables=(TSV, JSON_LINES))
    predictor = predict.load(
        arguments.init,
        task=arguments.task,
        data=arguments.data,
        precision=arguments.precision,
    )
    lines = (line for line in found if line[1].strip())
    while group := list(itertools.islice(lines, arguments.batch_size * _BATCHES_AT_ONCE)):
        for answer in predictor.predict(group, arguments.batch_size):
            print(json.dumps(answer, ensure_ascii=False))
        sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bertjax predict",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--init", required=True, metavar="RUN", help="RUN/seed_N, or an imported classifier")
    add("--input", metavar="FILE", help="one example a line (default: standard input)")
    add("--task", default="", help="which one, of a run that learned several")
    add("--data", default="", metavar="DIR", help="where the recipe's knowledge graph lies")
    add("--precision", default="", help="as config.model.precision (default: that of the run)")
    add(
        "--batch_size",
        action=checked(PositiveInt),
        default=32,
        metavar="N",
        help="at a time (default 32)",
    )
    return parser
