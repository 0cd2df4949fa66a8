"""bertjax import: a model saved by transformers becomes a run."""

import json

import numpy as np
import pytest
from ml_collections import ConfigDict

from bertjax import catalog
from bertjax.errors import UserError
from bertjax.huggingface import import_warnings, importing, model
from bertjax.huggingface.model import read_arrays
from bertjax.inference import predict, reranking
from bertjax.tokenizers import definitions, tokenizer
from bertjax.train.checkpoint import origin as checkpoint_origin
from bertjax.train.checkpoint import restore

HEADS = ("cls",)
CLASSIFIER = {
    "classifier.weight": np.ones((2, 16), np.float32),
    "classifier.bias": np.zeros(2, np.float32),
}


def id2label(*names):
    """The field of config.json with the names of the outputs."""
    return {"id2label": {str(number): name for number, name in enumerate(names)}}


def import_model(source, target, *options):
    catalog.load("commands", "import").main(
        ["--model", str(source), "--workdir", str(target), *map(str, options)]
    )


def test_a_folder_becomes_a_run(run_bertjax, save_pretrained, tmp_path):
    source = save_pretrained(tmp_path / "hf_model")
    captured = run_bertjax("import", "--model", source, "--workdir", tmp_path / "run")
    assert captured.returncode == 0, captured.stderr
    assert captured.stderr == ""
    first, following = captured.stdout.splitlines()
    assert first.endswith(": bert with 6,033 parameters; heads: mlm, sentence_pair")
    assert f"finetune --config glue:mrpc,small --init {tmp_path / 'run'}" in following

    printed = run_bertjax("inspect", tmp_path / "run", "--json")
    assert printed.returncode == 0, printed.stderr
    run = json.loads(printed.stdout)
    assert (run["status"], run["latest_checkpoint"]) == ("complete", 0)
    assert run["config"]["imported"]["name"] == "hf_model"
    assert json.loads(run_bertjax("inspect", f"{tmp_path / 'run'}@0", "--json").stdout)["step"] == 0

    origin = checkpoint_origin.resolve(str(tmp_path / "run"))
    words = restore.load_numpy(origin.checkpoint, "params/encoder/word_embeddings")["embedding"]
    hf_words = read_arrays(source)["bert.embeddings.word_embeddings.weight"]
    np.testing.assert_array_equal(words, hf_words)


@pytest.mark.parametrize("special", [True, False])
def test_special_tokens_that_are_not_recognised_in_texts_are_named(
    save_pretrained, tmp_path, special
):
    source = save_pretrained(tmp_path / "hf_model")
    pieces = {
        piece: number for number, piece in enumerate((source / "vocab.txt").read_text().split())
    }
    definition = definitions.wordpiece(pieces, lowercase=True)
    token = definition["added_tokens"][0] | {"id": pieces["z"], "content": "z", "special": special}
    definition["added_tokens"].append(token)
    (source / "tokenizer.json").write_text(json.dumps(definition))
    made = importing.read(source)
    assert any("additional special tokens (z)" in warning for warning in made.warnings) == special
    assert made.tokenizer.encode_batch(["a z"]) == [[5, 1 if special else 30]]


def test_a_bare_sentencepiece_model_is_named(save_pretrained, tmp_path):
    words = "ab cd ef gh ij"
    trained = tokenizer.train([words] * 9, kind="unigram", vocab_size=19)
    trained.save(str(tmp_path / "pieces"))
    source = save_pretrained(tmp_path / "hf_model", vocab_size=trained.vocab_size)
    released = model.read(source)
    (warning,) = import_warnings.find_warnings(released, "", trained)
    assert "SentencePiece model without a tokenizer.json" in warning


def test_mismatched_arrays_are_listed_in_a_table(run_bertjax, save_pretrained, tmp_path):
    changed = {"bert.pooler.dense.bias": np.zeros(5, np.float32), "adapter": np.ones(3)}
    source = save_pretrained(
        tmp_path / "hf_model", changed, ("bert.encoder.layer.1.output.dense.b",)
    )
    captured = run_bertjax("import", "--model", source, "--workdir", tmp_path / "run")
    assert captured.returncode == 2
    assert captured.stdout == ""
    error, *rows = captured.stderr.splitlines()
    assert error.startswith(f"bertjax import: error: {source}: 3 of 47 arrays do not fit")
    assert [row.split()[:2] for row in rows] == [
        ["missing", "bert.encoder.layer.1.output.dense.bias"],
        ["wrong", "shape"],
        ["unexpected", "adapter"],
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["hf_model"]


@pytest.mark.parametrize(
    ("change", "printed"),
    [
        ({"model_type": "t5"}, "model_type .*: got 't5', expected one of .*bert"),
        ({"vocab_size": 40}, "arrays do not fit|got 40, expected 31, that of its"),
        (
            {"num_attention_heads": 3},
            "got hidden_size=16, num_attention_heads=3, expected .* equal heads",
        ),
    ],
)
def test_a_config_that_does_not_match_is_refused(save_pretrained, tmp_path, change, printed):
    source = save_pretrained(tmp_path / "hf_model", **change)
    with pytest.raises(UserError, match=printed):
        import_model(source, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_separate_tokenizer_must_match_the_model(save_pretrained, tmp_path):
    source = save_pretrained(tmp_path / "hf_model")
    (source / "vocab.txt").rename(tmp_path / "vocab.txt")
    with pytest.raises(UserError, match="is not a tokenizer folder"):
        import_model(source, tmp_path / "run")
    import_model(source, tmp_path / "run", "--tokenizer", tmp_path / "vocab.txt")
    assert (tmp_path / "run" / "tokenizer" / "vocab.txt").is_file()
    with (tmp_path / "vocab.txt").open("a") as file:
        file.write("more\n")
    with pytest.raises(
        UserError, match=r"vocab_size of .*: got 31, expected 32, that of its tokenizer"
    ):
        import_model(source, tmp_path / "other", "--tokenizer", tmp_path / "vocab.txt")


def test_an_existing_folder_is_not_overwritten(save_pretrained, tmp_path):
    source = save_pretrained(tmp_path / "hf_model")
    before = sorted(path.name for path in source.iterdir())
    with pytest.raises(UserError, match="exists and is not empty: specify a new folder"):
        import_model(source, source)
    assert sorted(path.name for path in source.iterdir()) == before


def test_a_classifier_needs_its_task(save_pretrained, tmp_path, capsys):
    source = save_pretrained(tmp_path / "hf_model", CLASSIFIER, HEADS)
    with pytest.raises(UserError, match="does not name the task: specify it, as in --task rte"):
        import_model(source, tmp_path / "run")
    with pytest.raises(UserError, match=r"outputs of the classifier: got 2, expected 3 for mnli"):
        import_model(source, tmp_path / "run", "--task", "mnli")
    with pytest.raises(UserError, match=r"LABEL_1, expected .* --labels entailment not_entailment"):
        import_model(source, tmp_path / "run", "--task", "rte")
    labels = ("--labels", "entailment", "not_entailment")
    import_model(source, tmp_path / "run", "--task", "rte", *labels)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["task"] == {
        "name": "glue",
        "dataset": "rte",
        "classifier_dropout": 0.1,
        "pooler_act": "tanh",
    }
    import_model(source, tmp_path / "encoder", "--task", "none")
    assert "left out: glue" in capsys.readouterr().err
    assert "task" not in json.loads((tmp_path / "encoder" / "config.json").read_text())


@pytest.mark.parametrize(
    ("file", "field"),
    [
        ("config_sentence_transformers.json", {"model_type": "CrossEncoder"}),
        ("config.json", {"sentence_transformers": {"version": "5.0.0"}}),
    ],
)
def test_a_cross_encoder_of_sentence_transformers_needs_no_task(
    save_pretrained, tmp_path, file, field
):
    one = {name: array[:1] for name, array in CLASSIFIER.items()}
    source = save_pretrained(tmp_path / "hf_model", one, HEADS, **id2label("LABEL_0"))
    stored = json.loads((source / file).read_text()) if (source / file).exists() else {}
    (source / file).write_text(json.dumps(stored | field))
    (source / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 12}))
    import_model(source, tmp_path / "run")
    assert reranking.is_cross_encoder(str(tmp_path / "run"))
    assert json.loads((tmp_path / "run" / "config.json").read_text())["data"] == {
        "corpus": "",
        "max_seq_length": 12,
    }
    import_model(source, tmp_path / "encoder", "--task", "none")
    assert "task" not in json.loads((tmp_path / "encoder" / "config.json").read_text())


def hf_config(end, **config):
    return {"architectures": [f"BertFor{end}"], **config}


def test_the_model_class_determines_the_head(save_pretrained, tmp_path, capsys):
    """The pooler, which this head does not use, is left out."""
    tags = {"0": "O", "1": "B-PER"}
    config = hf_config("TokenClassification", id2label=tags)
    source = save_pretrained(tmp_path / "hf_model", CLASSIFIER, HEADS, **config)
    import_model(source, tmp_path / "run")
    captured = capsys.readouterr()
    assert captured.err == "left out: encoder/pooler\n"
    assert captured.out.splitlines()[0].endswith("; heads: ner")
    run = json.loads((tmp_path / "run" / "config.json").read_text())
    assert run["task"] == {"name": "ner", "labels": ["O", "B-PER"], "classifier_dropout": 0.1}
    assert run["model"]["num_pooler_layers"] == 0
    import_model(source, tmp_path / "encoder", "--task", "none")
    assert "left out: ner" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("end", "config", "task", "printed"),
    [
        ("TokenClassification", {}, "", "got LABEL_0, LABEL_1, expected names such as O, B-PER"),
        (
            "TokenClassification",
            id2label("NOUN", "NOUN"),
            "",
            "NOUN, NOUN, expected 2 different tags such as O",
        ),
        ("TokenClassification", id2label("O", "B-PER"), "mnli", "--task: got mnli, expected ner"),
        ("MultipleChoice", {}, "", "does not name the task: specify it"),
        ("MultipleChoice", {}, "rte", r"--task: got 'rte', expected .*\(multiple_choice\): known"),
        ("MultipleChoice", {"finetuning_task": "dream"}, "", "finetuning_task of .*: got 'dream'"),
        ("MultipleChoice", {"num_choices": "4"}, "race", "num_choices of config.json: got '4'"),
    ],
)
def test_heads_with_missing_or_contradictory_information_are_refused(
    save_pretrained, tmp_path, end, config, task, printed
):
    source = save_pretrained(tmp_path / "hf_model", CLASSIFIER, HEADS, **hf_config(end, **config))
    with pytest.raises(UserError, match=printed):
        import_model(source, tmp_path / "run", "--task", task)
    assert not (tmp_path / "run").exists()


def test_predict_with_an_imported_question_answering_model(save_pretrained, run_bertjax, tmp_path):
    head = {name.replace("classifier", "qa_outputs"): a for name, a in CLASSIFIER.items()}
    head["bert.embeddings.position_embeddings.weight"] = np.ones((512, 16), np.float32)
    config = hf_config("QuestionAnswering", max_position_embeddings=512)
    source = save_pretrained(tmp_path / "hf_model", head, HEADS, **config)
    import_model(source, tmp_path / "run", "--task", "squad1")
    captured = run_bertjax("predict", "--model", tmp_path / "run", input="q\ta b c\n")
    assert captured.returncode == 0, captured.stderr
    assert set(json.loads(captured.stdout)) == {"question", "context", "answer", "n_best"}
    lines = [("x:1", "q " * 64 + "\ta b c"), ("x:2", "q " * 65 + "\ta b c")]
    answers = predict.load(str(tmp_path / "run")).predict(lines, 2)
    assert ["truncated" in answer for answer in answers] == [False, True]


def test_other_heads_than_the_classifier_are_left_out(save_pretrained, tmp_path, capsys):
    config = {"finetuning_task": "rte", **id2label("entailment", "not_entailment")}
    source = save_pretrained(tmp_path / "hf_model", CLASSIFIER, **config)
    import_model(source, tmp_path / "run")
    assert "left out: mlm, sentence_pair" in capsys.readouterr().err


def test_fine_tuning_from_a_hugging_face_folder_is_refused_with_the_import_command(
    save_pretrained, tmp_path
):
    source = save_pretrained(tmp_path / "hf_model")
    with pytest.raises(UserError, match=r"`bertjax import --model \S+hf_model --workdir RUN`"):
        checkpoint_origin.resolve(str(source))


@pytest.mark.parametrize(
    ("model_type", "activation"),
    [("bert", "tanh"), ("xlnet", "tanh"), ("electra", "gelu"), ("distilbert", "relu")],
)
def test_the_suggested_fine_tuning_can_be_exported(model_type, activation):
    config = ConfigDict({"imported": {"model_type": model_type}})
    assert importing.classifier_act(config) == activation


def test_help_has_an_example(run_bertjax):
    captured = run_bertjax("import", "--help")
    assert captured.returncode == 0
    assert "bertjax finetune --config glue:rte --init runs/bert_base" in captured.stdout
