"""Official scores of prediction files of XNLI and MLDoc."""

import pytest

from bertjax.errors import UserError
from bertjax.tasks import official

XNLI = """language\tindex\tprediction
de\t1\tneutral
en\t0\tcontradiction
de\t0\tneutral
en\t1\tentailment
"""


def scored(task, references, text):
    predictions = references.parent / "predictions.tsv"
    predictions.write_text(text)
    return official.score(task, str(references), str(predictions))


def test_languages_are_scored_apart(xnli, mldoc):
    dev = xnli / "XNLI-1.0" / "xnli.dev.tsv"
    expected = {"accuracy": 0.75, "de_accuracy": 0.5, "en_accuracy": 1.0, "examples": 4}
    assert scored("xnli", dev, XNLI) == expected
    rows = ["english\t0\tCCAT", "english\t1\tMCAT", "english\t2\tMCAT"]
    rows += ["german\t0\tMCAT", "german\t1\tCCAT"]
    text = "\n".join(["language\tindex\tprediction", *rows, ""])
    found = scored("mldoc", mldoc / "{language}.dev", text)
    assert found == {
        "accuracy": pytest.approx(5 / 6),
        "english_accuracy": pytest.approx(2 / 3),
        "german_accuracy": 1.0,
        "examples": 5,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (XNLI[1:], r":1: got .*, expected the header line language, index, prediction"),
        (XNLI + "en\t1\tneutral\n", r":6: example 'en/1' occurs twice; remove one"),
        (XNLI + "en\t2\tmaybe\n", r":6: got .* expected language, index and one of entailment"),
        (XNLI + "fr\t0\tneutral\n", r"1 predictions with ids that are not in .* 'fr/0'"),
        (XNLI.replace("de\t1\tneutral\n", ""), r"no prediction for 1 of 4 .* 'de/1'"),
    ],
)
def test_mismatched_predictions_are_refused(xnli, text, message):
    with pytest.raises(UserError, match=message):
        scored("xnli", xnli / "XNLI-1.0" / "xnli.dev.tsv", text)


def test_missing_references_are_named(xnli):
    with pytest.raises(UserError, match=r"no file .* expected a labelled file of xnli with a col"):
        scored("xnli", xnli / "absent.tsv", XNLI)
