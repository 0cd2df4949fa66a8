"""Score prediction files with the official metrics of a task."""

import argparse
import json

EPILOG = """\
examples:
  bertjax score mrpc --references glue/MRPC/dev.tsv --predictions MRPC.tsv
  bertjax score squad --references squad/dev-v2.0.json --predictions pred.json
  bertjax score conll2003 --references conll2003/valid.txt --predictions ner.txt
  bertjax score conll2003 --predictions ner.txt
  bertjax score race --references RACE/dev --predictions pred.json
  bertjax score swag --references swag/val.csv --predictions answers.jsonl

Prints one JSON object. Metrics are fractions in [0, 1], except for SQuAD, where
they are percent.

GLUE tasks     cola sst2 mrpc stsb qqp mnli qnli rte wnli, book_review,
               chnsenticorp. References: a released file with labels.
               Predictions: two columns, index and prediction, the format of
               GLUE's server, as in WORKDIR/predictions/dev/ of bertjax
               finetune.
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


def main(argv: list[str]) -> None:
    """Scores a prediction file and prints one JSON object."""
    arguments = _parser().parse_args(argv)
    from bertjax.io import copies
    from bertjax.tasks import official

    references = arguments.references and str(copies.local_copy(arguments.references))
    predictions = str(copies.local_copy(arguments.predictions))
    found = official.score(arguments.task, references, predictions)
    print(json.dumps(found))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bertjax score",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("task", metavar="TASK", help="the task, see below")
    add(
        "--references",
        metavar="PATH",
        help="released file, or folder for race, with the correct answers",
    )
    add("--predictions", required=True, metavar="FILE", help="file of predictions")
    return parser
