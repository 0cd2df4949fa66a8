"""Score prediction files of any model with the official metrics of a task."""

import argparse
import json

EPILOG = """\
examples:
  bertjax score mrpc --references glue/MRPC/dev.tsv --predictions MRPC.tsv
  bertjax score squad --references squad/dev-v2.0.json --predictions predictions.json
  bertjax score conll2003 --references conll2003/valid.txt --predictions predicted.txt
  bertjax score conll2003 --predictions predicted.txt
  bertjax score race --references RACE/dev --predictions answers.json
  bertjax score swag --references swag/val.csv --predictions answers.jsonl

One JSON object is printed. Measures in it are fractions: 1 is perfect; SQuAD's are percentages.

GLUE's tasks   cola sst2 mrpc stsb qqp mnli qnli rte wnli. References are a released file that has
               labels; predictions have two columns, index and prediction, as GLUE's server requires
               them and bertjax finetune writes them to WORKDIR/predictions/dev/.
               book_review and chnsenticorp likewise.
squad          References are a file in SQuAD's layout; predictions are {"QUESTION_ID": "answer"},
               "" for none. Measures are those of evaluate-v1.1 or of evaluate-v2.0, whichever the
               references are; "rules" names it, squad1 or squad2.
squad1 squad2  Likewise, by the rules of 1.1 or of 2.0 alone.
conll2003      CoNLL columns, word first and tag last. Without references the right tag stands
               before the predicted one, as in the input of conlleval. Any sequence of tags in IOB1
               or IOB2, broken ones too, counts as in that script, which knows no E and S of BIOES.
               Sequences with these count as in seqeval's default mode and the Python ports of the
               script: B and S begin an entity, E and S end one; I and E also begin one after O, E,
               S or another type, and the next tag that begins one, or O, ends an entity without E.
race           References are the folder of a split. Predictions are {"high1.txt-0": "B", ...}: the
               article's id and the question's number, from 0; A to D, or 0 to 3. Or JSON lines of
               {"id": "high1.txt-0", "prediction": "B"}.
swag           References are a released file that has labels. Predictions as for race; a question
               is called by the number of its row, from 0.
"""


def main(argv: list[str]) -> None:
    """Scores, and prints one JSON object."""
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
    add("task", metavar="TASK", help="what was predicted: see below")
    add("--references", metavar="FILE", help="what is right, as it was released")
    add("--predictions", required=True, metavar="FILE", help="what was predicted")
    return parser
