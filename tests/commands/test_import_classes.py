"""Classes of an imported classifier: any order and spelling; `predict` and `export` keep both."""

import json

import numpy as np
import pytest

import bertjax
from bertjax import catalog
from bertjax.errors import UserError
from bertjax.huggingface import exporting, importing
from bertjax.huggingface.model import read_arrays
from bertjax.inference import predict

HEADS = ("cls",)
CASES = [
    ("mnli", ("CONTRADICTION", "NEUTRAL", "ENTAILMENT"), (2, 1, 0)),
    ("mnli", ("neutral", "contradiction", "entailment"), (2, 0, 1)),
    ("rte", ("Not_Entailment", "Entailment"), (1, 0)),
    ("qnli", ("ENTAILMENT", "not entailment"), ()),
    ("sst2", ("POSITIVE", "NEGATIVE"), (1, 0)),
    ("sst2", ("negative", "positive"), ()),
    ("mrpc", ("equivalent", "not-equivalent"), (1, 0)),
    ("cola", ("1", "0"), (1, 0)),
]


def import_model(source, target, *options):
    catalog.load("commands", "import").main(
        ["--model", str(source), "--workdir", str(target), *map(str, options)]
    )


def classifier(bias, kernel=None):
    """The arrays of a classifier; without a kernel its bias alone decides."""
    weight = np.zeros((len(bias), 16)) if kernel is None else kernel
    return {
        "classifier.weight": np.asarray(weight, np.float32),
        "classifier.bias": np.asarray(bias, np.float32),
    }


def named(*names, **more):
    """Fields of config.json that name the outputs of a text classifier."""
    table = {str(number): name for number, name in enumerate(names)}
    return {"architectures": ["BertForSequenceClassification"], "id2label": table, **more}


def predict_texts(run, *texts):
    predictor = predict.load(str(run), precision="float32")
    return predictor.predict([("line 1", "\t".join(texts))], 8)[0]


@pytest.mark.parametrize(("task", "names", "order"), CASES)
def test_names_and_order_are_those_of_the_model(save_pretrained, tmp_path, task, names, order):
    """The first output is the most likely one, whichever class it is."""
    arrays = classifier(np.log([6.0, 3.0, 1.0][: len(names)]))
    source = save_pretrained(tmp_path / "hf", arrays, HEADS, **named(*names))
    import_model(source, tmp_path / "run", "--task", task)
    run = json.loads((tmp_path / "run" / "config.json").read_text())
    assert tuple(run["imported"].get("class_order", ())) == order
    exporting.write(exporting.find(str(tmp_path / "run")), tmp_path / "back")
    back = json.loads((tmp_path / "back" / "config.json").read_text())
    assert back["id2label"] == named(*names)["id2label"]
    assert back["label2id"] == {name: number for number, name in enumerate(names)}
    files = [folder / "model.safetensors" for folder in (source, tmp_path / "back")]
    assert files[0].read_bytes() == files[1].read_bytes()
    importing.write(importing.read(tmp_path / "back"), tmp_path / "again")
    again = json.loads((tmp_path / "again" / "config.json").read_text())
    assert again["task"] == run["task"]
    assert again["imported"]["parameters"] == run["imported"]["parameters"]


def test_predict_prints_the_class_of_the_model(save_pretrained, tmp_path):
    arrays = classifier(np.log([6.0, 3.0, 1.0]))
    config = named("CONTRADICTION", "NEUTRAL", "ENTAILMENT")
    source = save_pretrained(tmp_path / "hf", arrays, HEADS, **config)
    import_model(source, tmp_path / "run", "--task", "mnli")
    found = predict_texts(tmp_path / "run", "a b", "c d")
    assert found["label"] == "CONTRADICTION"
    expected = {"CONTRADICTION": 0.6, "NEUTRAL": 0.3, "ENTAILMENT": 0.1}
    assert found["probabilities"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
def test_transformers_prints_the_same_names_and_probabilities(save_pretrained, tmp_path):
    pytest.importorskip("torch", reason="needs torch, of the dependency group test-all")
    transformers = pytest.importorskip(
        "transformers", reason="needs transformers, of the group test-all"
    )
    kernel = np.random.default_rng(3).normal(size=(3, 16))
    config = named("neutral", "Contradiction", "ENTAILMENT")
    source = save_pretrained(tmp_path / "hf", classifier([0, 0, 0], kernel), HEADS, **config)
    import_model(source, tmp_path / "run", "--task", "mnli")
    pipeline = transformers.pipeline("text-classification", str(source), device="cpu", top_k=None)
    for texts in (("a b", "c d e"), ("q", "z"), ("x y z", "a")):
        expected = pipeline({"text": texts[0], "text_pair": texts[1]})
        found = predict_texts(tmp_path / "run", *texts)
        assert found["label"] == max(expected, key=lambda each: each["score"])["label"]
        scores = {each["label"]: each["score"] for each in expected}
        assert found["probabilities"] == pytest.approx(scores, abs=1e-5)


def test_stated_names_replace_those_of_the_config(save_pretrained, tmp_path):
    config = named("LABEL_0", "LABEL_1", finetuning_task="sst2")
    source = save_pretrained(tmp_path / "hf", classifier([2, 0]), HEADS, **config)
    import_model(source, tmp_path / "run", "--labels", "positive", "negative")
    run = json.loads((tmp_path / "run" / "config.json").read_text())
    assert run["task"]["labels"] == ["negative", "positive"]
    assert run["imported"]["class_order"] == [1, 0]
    made = importing.read(source, labels=("0", "1"))
    assert "labels" not in made.config.task
    np.testing.assert_array_equal(made.params["glue/classifier/dense/bias"], [2, 0])


def test_stated_tags_replace_those_of_the_config(save_pretrained, tmp_path):
    """Tags that are not those of entities are classes."""
    config = named("DET", "NOUN") | {"architectures": ["BertForTokenClassification"]}
    source = save_pretrained(tmp_path / "hf", classifier([2, 0]), HEADS, **config)
    (found,) = bertjax.load(str(source)).tag(["name of"])
    assert found.keys() == {"words", "tags", "probabilities"}
    assert found["tags"] == ["DET", "DET"]
    made = importing.read(source, labels=("B-PER", "O"))
    assert made.config.task.labels == ("B-PER", "O")
    with pytest.raises(UserError, match="got O, expected 2 different tags such as O, B-PER"):
        importing.read(source, labels=("O",))


@pytest.mark.parametrize(
    ("config", "labels", "message"),
    [
        (named("yes", "no"), (), "rte: got yes, no, expected entailment, not_entailment in any"),
        (named("entailment", "Entailment"), (), "got entailment, Entailment, expected"),
        (named("LABEL_0", "LABEL_1"), (), "does not name the classes: got LABEL_0, LABEL_1"),
        ({}, (), "does not name the classes: got LABEL_0, LABEL_1"),
        (named("entailment"), (), r"id2label of .*expected a name for each .* 2 outputs"),
        ({"id2label": {"a": "entailment", "b": "x"}}, (), "id2label of .*numbered from 0"),
        ({"id2label": ["entailment"]}, (), "id2label of config.json: got .*expected an object"),
        (
            named("entailment", "not_entailment", label2id={"not_entailment": 0, "entailment": 1}),
            (),
            "label2id of config.json: got not_entailment=0, expected 1 as in id2label",
        ),
        (named("entailment", "not_entailment", num_labels=3), (), "num_labels .*got 3, expected 2"),
        ({}, ("no", "yes"), "got no, yes, expected entailment, not_entailment in any order"),
        ({}, ("entailment",), "got entailment, expected entailment, not_entailment in any"),
        (
            named("entailment", "not_entailment", problem_type="multi_label_classification"),
            (),
            "got 'multi_label_classification', expected 'single_label_classification' for rte",
        ),
        (
            named("entailment", "not_entailment", problem_type="regression"),
            (),
            "got 'regression', expected 'single_label_classification' for rte",
        ),
    ],
)
def test_other_classes_than_those_of_the_task_are_refused(
    save_pretrained, tmp_path, config, labels, message
):
    source = save_pretrained(tmp_path / "hf", classifier([2, 0]), HEADS, **config)
    with pytest.raises(UserError, match=message):
        importing.read(source, task="rte", labels=labels)


def test_placeholders_in_label2id_are_ignored(save_pretrained, tmp_path):
    config = named("not_entailment", "entailment", label2id={"LABEL_0": 0, "LABEL_1": 1})
    source = save_pretrained(tmp_path / "hf", classifier([2, 0]), HEADS, **config)
    assert importing.read(source, task="rte").config.imported.class_order == (1, 0)


@pytest.mark.parametrize(
    ("config", "labels", "message"),
    [
        ({"problem_type": "single_label_classification"}, (), "expected 'regression' for stsb"),
        ({}, ("a",), "--labels: got a, expected none for stsb, a regression"),
    ],
)
def test_a_regression_has_no_classes(save_pretrained, tmp_path, config, labels, message):
    source = save_pretrained(tmp_path / "hf", classifier([2]), HEADS, **config)
    with pytest.raises(UserError, match=message):
        importing.read(source, task="stsb", labels=labels)
    with pytest.raises(UserError, match=r"outputs of the classifier: got 1, expected 2 for rte"):
        importing.read(source, task="rte")


def test_a_sigmoid_in_the_pipeline_of_transformers_is_mentioned(save_pretrained, tmp_path):
    """Its pipeline applies one to a single output, unless the config states a regression."""
    source = save_pretrained(tmp_path / "hf", classifier([2]), HEADS)
    (warning,) = importing.read(source, task="stsb").warnings
    assert "no problem_type=regression" in warning
    stated = save_pretrained(tmp_path / "2", classifier([2]), HEADS, problem_type="regression")
    assert importing.read(stated, task="stsb").warnings == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--task", "mnli"], "task: got mnli, expected none, as the model has no head of a task"),
        (["--labels", "a", "b"], "--labels: got a, b, expected none"),
    ],
)
def test_options_about_a_missing_head_are_refused(save_pretrained, tmp_path, options, message):
    source = save_pretrained(tmp_path / "hf")
    with pytest.raises(UserError, match=message):
        import_model(source, tmp_path / "run", *options)
    assert not (tmp_path / "run").exists()


def test_options_about_a_head_that_is_left_out_are_refused(save_pretrained, tmp_path):
    source = save_pretrained(tmp_path / "hf", classifier([2, 0]), HEADS)
    with pytest.raises(UserError, match="--labels: got a, expected none"):
        importing.read(source, task="none", labels=("a",))


@pytest.mark.parametrize(
    ("name", "arrays", "message"),
    [
        ("BertLMHeadModel", {}, "without is_decoder=true: imported as BertForMaskedLM, with"),
        ("BertForNovels", {}, "a class unknown to bertjax: imported as BertForMaskedLM by"),
        ("BertForMaskedLM", {}, None),
    ],
)
def test_unexpected_classes_of_transformers_are_reported(
    save_pretrained, tmp_path, capsys, name, arrays, message
):
    without = ("cls.seq_relationship", "bert.pooler")
    source = save_pretrained(tmp_path / "hf", arrays, without, architectures=[name])
    import_model(source, tmp_path / "run")
    printed = capsys.readouterr().err
    assert printed.count("\n") == (message is not None)
    assert not message or printed.startswith(f"warning: config.json names {name}")
    assert not message or message in printed


def test_a_task_that_contradicts_the_config_is_reported(save_pretrained, tmp_path, capsys):
    config = named("entailment", "not_entailment", finetuning_task="rte")
    source = save_pretrained(tmp_path / "hf", classifier([2, 0]), HEADS, **config)
    import_model(source, tmp_path / "run", "--task", "qnli")
    assert "finetuning_task='rte': imported as qnli, the value of --task" in capsys.readouterr().err


def test_question_answering_models_are_imported_as_squad1_by_default(
    save_pretrained, tmp_path, capsys
):
    arrays = {name.replace("classifier", "qa_outputs"): a for name, a in classifier([0, 0]).items()}
    config = {"architectures": ["BertForQuestionAnswering"]}
    source = save_pretrained(tmp_path / "hf", arrays, HEADS, **config)
    import_model(source, tmp_path / "run")
    assert "specify --task squad2 for a model of SQuAD 2.0" in capsys.readouterr().err
    import_model(source, tmp_path / "other", "--task", "squad2")
    assert "squad2" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "mnli"}, "task: got mnli, expected rte, the only task of the run"),
        ({"precision": "float9"}, "config.model.precision='float9': "),
        ({"data": "graphs"}, "data: got graphs, expected none, since the run's recipe has no"),
    ],
)
def test_predict_refuses_options_that_contradict_the_run(
    save_pretrained, tmp_path, options, message
):
    config = named("entailment", "not_entailment")
    source = save_pretrained(tmp_path / "hf", classifier([2, 0]), HEADS, **config)
    import_model(source, tmp_path / "run", "--task", "rte")
    with pytest.raises(UserError, match=message):
        predict.load(str(tmp_path / "run"), **options)


def test_weights_without_the_bias_of_the_classifier(save_pretrained, tmp_path):
    arrays = {"classifier.weight": np.zeros((2, 16), np.float32)}
    source = save_pretrained(tmp_path / "hf", arrays, HEADS)
    assert "classifier.bias" not in read_arrays(source)
    with pytest.raises(UserError, match=r"the weights lack classifier.bias"):
        importing.read(source, task="rte")
