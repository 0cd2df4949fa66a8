"""Official scores of prediction files: by hand, on real data, and mismatched files."""

import json

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.metrics import classification, entities
from bertjax.tasks import official
from bertjax.tasks.glue import files as glue_files
from bertjax.tasks.glue import predictions as glue_predictions
from bertjax.tasks.glue.table import GLUE, glue_task
from bertjax.tasks.multiple_choice import predictions as multiple_choice_predictions
from bertjax.tasks.ner import conll as ner_conll

RTE = "index\tsentence1\tsentence2\tlabel\n" + "".join(
    f"{n}\ta\tb\t{'not_' * (n % 2)}entailment\n" for n in (4, 5, 7, 9)
)
ANSWERS = "index\tprediction\n9\tnot_entailment\n4\tentailment\n5\tentailment\n7\tnot_entailment\n"
TAGGED = "-DOCSTART- O\n\nAnn NNP B-PER\nran VBD O\n\nin IN O\nOslo NNP B-LOC\n"


@pytest.fixture
def put(tmp_path):
    def put(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if isinstance(text, str) else json.dumps(text))
        return str(path)

    return put


def scored(put, task, references, predictions):
    printed = None if references is None else put("references", references)
    return official.score(task, printed, put("predictions", predictions))


def test_glue_is_matched_by_index(put):
    assert scored(put, "rte", RTE, ANSWERS) == {"accuracy": 3 / 4, "examples": 4}
    assert scored(put, "rte", RTE, ANSWERS.replace("\n", "\r\n")) == {
        "accuracy": 3 / 4,
        "examples": 4,
    }


def test_every_task_of_glue_has_its_metrics():
    assert {task.name for task in GLUE} <= set(official.SCORERS)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("cola", "CoLA/dev.tsv"),
        ("sst2", "SST-2/dev.tsv"),
        ("mrpc", "MRPC/msr_test_labelled.tsv"),
        ("mrpc", "MRPC/dev.tsv"),
        ("stsb", "STS-B/test_labelled.tsv"),
        ("rte", "RTE/dev.tsv"),
    ],
)
def test_released_files_of_glue(shared_data, tmp_path, name, file):
    task, path = glue_task(name), shared_data / "glue" / file
    examples = glue_files.read_file(path, task)
    state = np.random.default_rng(0)
    guesses = state.permutation(examples.labels)
    order = state.permutation(len(examples))
    indices = [examples.indices[place] for place in order]
    glue_predictions.write(tmp_path / "p.tsv", task, indices, guesses[order])
    if name == "stsb":
        guesses = np.round(guesses, 3)
    expected = {
        each: getattr(classification, each)(guesses, examples.labels) for each in task.metrics
    }
    found = official.score(name, str(path), str(tmp_path / "p.tsv"))
    assert found == pytest.approx(expected | {"examples": len(examples)})


@pytest.mark.parametrize(
    ("references", "predictions", "message"),
    [
        (
            RTE,
            ANSWERS[len("index") :],
            r"predictions:1: got '\\tprediction', expected the header",
        ),
        (RTE, "", r"predictions:1: got '', expected the header line of GLUE's"),
        (
            RTE,
            ANSWERS + "4 entailment\n",
            r"predictions:6: got '4 entailment', expected index",
        ),
        (RTE, ANSWERS + "4\tentailment\n", r"predictions:6: index '4' occurs at .*predictions:3 t"),
        (RTE, ANSWERS + "1\tyes\n", r"predictions:6: prediction: got 'yes', expected one of entai"),
        (
            RTE,
            ANSWERS.replace("5\t", "6\t"),
            r"predictions has no prediction for 1 of 4 examples of .*references, the first is "
            "'5'; add them",
        ),
        (
            RTE,
            ANSWERS + "11\tentailment\n10\tentailment\n",
            r"predictions has 2 predictions with ids that are not in .*references, the first is '1",
        ),
        (RTE + "4\ta\tb\tentailment\n", ANSWERS, "references has the same id twice"),
        (RTE.replace("\tlabel", ""), ANSWERS, r"references line 1: no column 'label'"),
    ],
)
def test_mismatched_predictions_of_glue_are_refused(put, references, predictions, message):
    with pytest.raises(UserError, match=message) as error:
        scored(put, "rte", references, predictions)
    assert "\n" not in str(error.value)


def test_invalid_references_of_glue_are_refused(put, tmp_path):
    predictions = put("predictions", ANSWERS)
    with pytest.raises(
        UserError, match=r"no labels in .*test.tsv: expected a labelled file, such as"
    ):
        official.score("rte", put("test.tsv", RTE.replace("label", "x")), predictions)
    with pytest.raises(
        UserError, match=r"no file .*absent.tsv: expected a released TSV file of rte"
    ):
        official.score("rte", str(tmp_path / "absent.tsv"), predictions)
    with pytest.raises(UserError, match=r"rte requires --references: pass the released file"):
        official.score("rte", None, predictions)
    with pytest.raises(UserError, match=r"cannot read .*absent.tsv"):
        official.score("rte", put("dev.tsv", RTE), str(tmp_path / "absent.tsv"))


@pytest.mark.parametrize("value", ["high", "nan", "inf", ""])
def test_a_similarity_is_a_number(put, value):
    path = put("predictions", f"index\tprediction\n0\t1.5\n1\t{value}\n")
    with pytest.raises(UserError, match=rf"predictions:3: prediction: got '{value}', exp"):
        glue_predictions.read(path, glue_task("stsb"))


PREDICTED = (
    TAGGED.replace("B-PER", "B-PER B-PER").replace(" O\n", " O O\n").replace("-LOC", "-LOC O")
)


def test_entities_with_and_without_references(put):
    expected = {"precision": 1.0, "recall": 0.5, "f1": pytest.approx(2 / 3), "accuracy": 3 / 4}
    expected |= {"words": 4, "entities": 2}
    whole = {"precision": 1.0, "recall": 1.0, "f1": 1.0, "entities": 1}
    none = {"precision": 0.0, "recall": 0.0, "f1": 0.0, "entities": 1}
    expected["types"] = {"LOC": none, "PER": whole}
    assert scored(put, "conll2003", None, PREDICTED) == expected
    assert scored(put, "conll2003", TAGGED, PREDICTED) == expected
    # The words and the predicted tags alone, and no documents.
    bare = "Ann B-PER\nran O\n\nin O\nOslo O\n"
    assert scored(put, "conll2003", TAGGED, bare) == expected
    # IOB1 names the same entities; only the number of correct tags differs.
    old = scored(put, "conll2003", TAGGED, bare.replace("B-", "I-"))
    assert old == expected | {"accuracy": 2 / 4}


@pytest.mark.parametrize(
    ("version", "marks", "rules"),
    [
        ("1.1", [{}, {}], "squad1"),
        (None, [{}, {}], "squad1"),
        ("1.1", [{"is_impossible": False}] * 2, "squad1"),
        ("v2.0", [{}, {}], "squad2"),
        ("v2.0", [{"is_impossible": False}] * 2, "squad2"),
        (None, [{"is_impossible": False}] * 2, "squad2"),
        ("v2.0", [{}, {"is_impossible": True, "answers": []}], "squad2"),
        ("1.1", [{}, {"is_impossible": True, "answers": []}], "squad2"),
    ],
)
def test_the_references_determine_the_version_of_squad(put, version, marks, rules):
    answers = {"answers": [{"text": "Oslo", "answer_start": 0}]}
    questions = [answers | {"id": f"q{n}", "question": "?"} | mark for n, mark in enumerate(marks)]
    content = {"data": [{"paragraphs": [{"context": "Oslo is cold.", "qas": questions}]}]}
    content |= {} if version is None else {"version": version}
    predictions = {"q0": "oslo", "q1": ""}
    found = scored(put, "squad", content, predictions)
    assert found == {"rules": rules} | scored(put, rules, content, predictions)
    assert ("exact_match" in found) == (rules == "squad1")


@pytest.mark.parametrize(
    ("references", "predictions", "message"),
    [
        (None, TAGGED, r"predictions:3: expected the reference tag and the predicted tag"),
        (None, "a O\n", r"predictions:1: expected the reference tag"),
        (
            TAGGED,
            "Ann O\nsat O\n",
            r"predictions:2: got 'sat', expected 'ran' as in .*references:4; both",
        ),
        (
            TAGGED,
            "Ann O\nran O\nin O\n",
            r"predictions:3: got 'in', expected the end .* as in .*:4",
        ),
        (
            TAGGED,
            "Ann O\n\nran O\n",
            r"predictions:1: got the end of the sentence, expected 'r",
        ),
        (
            TAGGED,
            "Ann O\nran O\n",
            r"predictions: got 1 sentences, expected 2 as in .*references",
        ),
        (TAGGED, "Ann O\nran\n", r"predictions:2: got 'ran' alone,"),
        (TAGGED, "", r"predictions has no sentence:"),
    ],
)
def test_mismatched_tagged_words_are_refused(put, references, predictions, message):
    with pytest.raises(UserError, match=message) as error:
        scored(put, "conll2003", references, predictions)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_released_sentences(shared_data, tmp_path):
    path = shared_data / "ner" / "conll2003" / "test.txt"
    sentences = ner_conll.read(path)
    state = np.random.default_rng(0)
    names = ner_conll.tag_names(sentences)
    guesses = [
        [tag if state.random() < 0.9 else str(state.choice(names)) for tag in each.tags]
        for each in sentences
    ]
    predicted = tmp_path / "predicted.txt"
    ner_conll.write(predicted, sentences, guesses)
    found = official.score("conll2003", str(path), str(predicted))
    assert found == official.score("conll2003", None, str(predicted))
    assert (found["words"], found["entities"]) == (46435, 5648)  # the task's paper, tables 1 and 2
    expected = entities.score(guesses, [each.tags for each in sentences])
    assert {name: found[name] for name in expected} == expected
    seqeval = pytest.importorskip("seqeval.metrics")
    right = [list(each.tags) for each in sentences]
    assert found["f1"] == pytest.approx(seqeval.f1_score(right, guesses))


def race_folder(put, **changes):
    for level, answers in (("middle", "AB"), ("high", "CDA")):
        article = {"id": f"{level}1.txt", "article": "text", "answers": list(answers)}
        article["questions"] = ["why?"] * len(answers)
        article["options"] = [["a", "b", "c", "d"]] * len(answers)
        put(f"RACE/dev/{level}/1.txt", article | changes)
    return put("RACE/note", "")[: -len("note")] + "dev"


GIVEN = {"high1.txt-0": "C", "middle1.txt-1": "A", "high1.txt-1": "D", "high1.txt-2": 1}
GIVEN |= {"middle1.txt-0": "0"}


def lines(answers):
    rows = [json.dumps({"id": name, "prediction": value}) for name, value in answers.items()]
    return "\n".join([*rows, ""])


@pytest.mark.parametrize("form", [json.dumps, lines, lambda answers: json.dumps(answers, indent=2)])
def test_race_by_level(put, form):
    folder = race_folder(put)
    assert official.score("race", folder, put("p", form(GIVEN))) == {
        "accuracy": 3 / 5,
        "questions": 5,
        "levels": {
            "middle": {"accuracy": 1 / 2, "questions": 2},
            "high": {"accuracy": pytest.approx(2 / 3), "questions": 3},
        },
    }


def test_swag(put, tmp_path):
    head = "sent1,sent2,ending0,ending1,ending2,ending3"
    body = "".join(f"s,b,w,x,y,z,{label}\n" for label in (3, 0, 2))
    table = put("val.csv", f"{head},label\n{body}")
    multiple_choice_predictions.write(tmp_path / "new" / "p.json", ["0", "1", "2"], [3, 0, 1])
    written = str(tmp_path / "new" / "p.json")
    assert official.score("swag", table, written) == {"accuracy": 2 / 3, "questions": 3}
    assert multiple_choice_predictions.read(written) == {"0": 3, "1": 0, "2": 1}
    numbers = put("p.jsonl", "".join(f'{{"id": {n}, "prediction": {n}}}\n' for n in range(3)))
    assert official.score("swag", table, numbers)["accuracy"] == pytest.approx(1 / 3)
    with pytest.raises(UserError, match=r"test.csv line 1: no column 'label'"):
        official.score("swag", put("test.csv", f"{head}\ns,b,w,x,y,z\n"), written)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", 'p: got \'\', expected \\{"ID": "B", \\.\\.\\.\\} or lines of'),
        ("[]", "p: got '\\[\\]', expected \\{\"ID\":"),
        ('{"a": ', "p: got '\\{\"a\": ', expected"),
        (lines(GIVEN) + "{}\n", r"p:6: got '\{\}', expected"),
        (lines(GIVEN) + "x\n", "p:6: got 'x', expected \\{\"ID\":"),
        (lines(GIVEN) * 2, r"p:6: question 'high1\.txt-0' occurs twice; remove one answer"),
        ('{"q": "A", "q": "A"}', r"p: question 'q' occurs twice; remove one answer"),
        (
            '{"q": "E"}',
            r"p: answer to question 'q': got 'E', expected a letter from A to D or an",
        ),
        ('{"q": 4}', r"p: answer to question 'q': got '4', expected a letter"),
        ('{"q": -1}', r"p: answer to question 'q': got '-1', expected a letter"),
        ('{"q": true}', r"p: answer to question 'q': got 'True', expected a letter"),
        ('{"q": ""}', r"p: answer to question 'q': got '', expected a letter"),
        ('{"q": {"a": 1}}', r"p: answer to question 'q': got .*, expected a letter"),
        (
            json.dumps({name: GIVEN[name] for name in list(GIVEN)[1:3]}),
            r"p has no prediction for 3 of 5 examples of .*dev, the first is 'middle1.txt-0'",
        ),
        (
            json.dumps(GIVEN | {"other": "A"}),
            r"p has 1 predictions with ids that are not in .*dev, the first is 'other'; remove",
        ),
    ],
)
def test_mismatched_answers_are_refused(put, text, message):
    with pytest.raises(UserError, match=message) as error:
        official.score("race", race_folder(put), put("p", text))
    assert "\n" not in str(error.value)


def test_references_without_answers(put):
    folder = race_folder(put, answers=[None] * 2, questions=["why?"] * 2, options=[["a"] * 4] * 2)
    with pytest.raises(UserError, match=r"no answers in .*dev: expected a labelled split"):
        official.score("race", folder, put("p", json.dumps(GIVEN)))
    for task in ("race", "swag"):
        with pytest.raises(UserError, match=f"{task} requires --references"):
            official.score(task, None, put("p", "{}"))


def test_an_unknown_task(put):
    with pytest.raises(UserError, match=r"unknown task 'conll': did you mean 'c"):
        official.score("conll", None, "x")
    with pytest.raises(UserError, match=r"unknown task 'zz': known: .*conll2003.*race.*swag"):
        official.score("zz", None, "x")


def test_squad_is_scored_like_the_official_scripts(shared_data):
    folder = shared_data / "squad"
    found = official.score(
        "squad1",
        str(folder / "v1.1_xquad_en.json"),
        str(folder / "predictions" / "v1.1_logreg_baseline.json"),
    )
    assert (found["exact_match"], found["f1"]) == (34.53781512605042, 45.852334974514676)


def test_squad_with_no_answers(put):
    questions = [
        {"id": "a", "question": "?", "answers": [{"text": "two", "answer_start": 4}]},
        {"id": "b", "question": "?", "answers": [], "is_impossible": True},
    ]
    references = {"data": [{"paragraphs": [{"context": "one two", "qas": questions}]}]}
    found = scored(put, "squad2", references, {"a": "The two!", "b": "one"})
    assert (found["exact"], found["HasAns_exact"], found["NoAns_exact"]) == (50.0, 100.0, 0.0)
    with pytest.raises(UserError, match=r"predictions: got the key 'a' 2 times, expected each "):
        scored(put, "squad2", references, '{"a": "two", "b": "", "a": ""}')
    with pytest.raises(UserError, match=r'predictions: expected a JSON object \{"QUESTION_ID"'):
        scored(put, "squad2", references, {"a": 1})
