"""Continued pretraining: the parameters that a run is initialised with from a model."""

import json
import pathlib
import shutil

import numpy as np
import pytest

import bertjax
from bertjax import cli
from bertjax import config as configs
from bertjax.corpus.prepare import prepare
from bertjax.errors import UserError
from bertjax.huggingface import importing
from bertjax.layers import layer_choice
from bertjax.runs import initialization, pretrain_job
from bertjax.tokenizers import tokenizer as tokenizers
from bertjax.train.checkpoint import restore, trees

SAVED = pathlib.Path(__file__).parents[1] / "data_fixtures" / "saved_runs"
CHECKPOINT = SAVED / "run" / "checkpoints" / "4"
FIELDS = {
    "num_train_steps": 2,
    "data.input": ("text.txt",),
    "data.validation_fraction": 0.3,
    "data.max_seq_length": 32,
    "data.batch_size": 8,
    "data.microbatches": 1,
    "optimizer.learning_rate": 0.0,
    "optimizer.warmup_steps": 0,
}


@pytest.fixture(scope="module")
def source():
    """The parameters of the source."""
    return trees.flatten_names(restore.load_numpy(CHECKPOINT, "params"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    shutil.copy(SAVED / "text.txt", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BERTJAX_CACHE", str(tmp_path / "cache"))
    return tmp_path


def start(overrides=(), spec="roberta:tiny", model=SAVED / "run", **changes):
    """The job and the parameters of a new run, before its first step."""
    config = bertjax.load_config(spec, FIELDS | changes)
    config = initialization.with_model(config, str(model), overrides)
    job = pretrain_job.prepare(config, "run", lambda line: None)
    return job, trees.flatten_names(job.create_state().params)


def test_the_encoder_and_the_shared_heads_are_loaded(folder, source):
    job, found = start()
    assert found.keys() == {name for name in source if not name.startswith("sentence_pair/")}
    for name, array in found.items():
        np.testing.assert_array_equal(array, source[name])
    assert job.initialization.copied == ("encoder", "mlm")
    assert not job.initialization.fresh
    assert job.config.model.hidden_size == 8
    assert job.tokenizer.fingerprint == tokenizers.load(SAVED / "vocab").fingerprint


def test_heads_that_the_source_does_not_have_are_new(folder, source):
    job, found = start(spec="spanbert:tiny", **{"optimizer.freeze_encoder": True})
    assert job.trainer.pretrainer.encode is layer_choice.frozen_features  # without dropout
    assert job.initialization.fresh == ("sbo",)
    assert any(name.startswith("sbo/") for name in found)
    np.testing.assert_array_equal(found["mlm/bias"], source["mlm/bias"])


def test_more_pieces_positions_and_layers(folder, source):
    tokenizer = tokenizers.train(
        [(folder / "text.txt").read_text()], kind="wordpiece", vocab_size=230
    )
    tokenizer.save("more")
    changes = [("model.max_position_embeddings", "70"), ("model.num_hidden_layers", "5")]
    job, found = start(changes, **{"tokenizer.path": "more"})
    assert job.config.model.vocab_size == tokenizer.vocab_size
    notes = " ".join(job.initialization.notes)
    assert "positions: 32 became 70" in notes
    assert "layers: 0, 1, 0, 1, 0 of 2" in notes
    assert "vocabulary: " in notes
    name = "encoder/position_embeddings/embedding"
    np.testing.assert_array_equal(found[name][32:64], source[name])
    name = "encoder/layers/block/attention/query/kernel"
    np.testing.assert_array_equal(found[name][3], source[name][1])
    old = tokenizers.load(SAVED / "vocab")
    before, after = (
        {piece: row for row, piece in enumerate(t.ids_to_pieces(range(t.vocab_size)))}
        for t in (old, tokenizer)
    )
    common = sorted(before.keys() & after.keys())
    assert 50 < len(common) < tokenizer.vocab_size
    for name in ("encoder/word_embeddings/embedding", "mlm/bias"):
        np.testing.assert_array_equal(
            np.asarray(found[name])[[after[piece] for piece in common]],
            source[name][[before[piece] for piece in common]],
        )


def random_source(spec, folder, **changes):
    """Writes a run of a config with random parameters; returns both."""
    tokenizer = tokenizers.load(SAVED / "vocab")
    size = {"model.vocab_size": tokenizer.vocab_size}
    config = bertjax.load_config(spec, size | changes)
    random = np.random.default_rng(0)
    shapes = importing.parameter_shapes(importing.pretrainer(config, tokenizer))
    params = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    importing.write(importing.Import(config, tokenizer, params, ()), folder)
    return config, params


def test_only_axes_of_the_vocabulary_follow_its_pieces(folder):
    size = tokenizers.load(SAVED / "vocab").vocab_size
    axes = {"model.max_position_embeddings": size, "model.intermediate_size": size}
    _, params = random_source("roberta:tiny", folder / "source", **axes)
    text = (folder / "text.txt").read_text()[::-1]
    tokenizers.train([text], kind="wordpiece", vocab_size=size).save("other")
    job, found = start((), model=folder / "source", **{"tokenizer.path": "other"})
    assert job.config.model.vocab_size == size
    for name in params:
        is_vocabulary = name in ("encoder/word_embeddings/embedding", "mlm/bias")
        assert np.array_equal(found[name], params[name]) is not is_vocabulary, name


def test_word_embeddings_of_another_sharing_with_the_generator(folder):
    table = "encoder/word_embeddings/embedding"
    shared, delta = (f"encoder/shared_embeddings/{n}/embedding" for n in ("generator", "delta"))
    _, one_table = random_source("deberta:tiny,mlm", folder / "es")
    job, found = start((), "deberta:tiny", folder / "es")
    assert job.config.model.embedding_sharing == "gdes"
    assert delta in job.initialization.fresh
    np.testing.assert_array_equal(found[shared], one_table[table])
    assert not np.asarray(found[delta]).any()
    _, two_tables = random_source("deberta:tiny", folder / "gdes")
    job, found = start((), "deberta:tiny,mlm", folder / "gdes")
    assert job.config.model.embedding_sharing == "es"
    np.testing.assert_array_equal(found[table], two_tables[shared] + two_tables[delta])
    assert shared not in found


def test_weights_of_depth_are_new_for_another_number_of_layers(folder):
    config, params = random_source("gpt_bert:tiny", folder / "source")
    number = config.model.num_hidden_layers
    changes = [("model.num_hidden_layers", str(number + 1))]
    rate = {"optimizer.end_learning_rate": 0.0}
    job, found = start(changes, "gpt_bert:tiny", folder / "source", **rate)
    name = "encoder/layers/depth_weights"
    assert name in job.initialization.fresh
    assert found[name].shape == ((number + 1) * (2 * number + 5),)
    kernel = "encoder/layers/block/feed_forward/output/kernel"
    np.testing.assert_array_equal(found[kernel][:number], params[kernel])


def test_a_run_continues_with_the_state_of_the_optimizer(folder):
    """At a learning rate of 0 the parameters stay; the moments are those of the source."""
    config = json.loads((SAVED / "run" / "config.json").read_text())
    (folder / "same.json").write_text(json.dumps(config))
    fields = FIELDS | {"data.corpus": "", "data.phases": (), "tokenizer.path": ""}
    config = bertjax.load_config("same.json", fields)
    config = initialization.with_model(config, str(SAVED / "run"), optimizer=True)
    job = pretrain_job.prepare(config, "run", lambda line: None)
    state = trees.flatten_names(job.create_state())
    stored = trees.flatten_names(restore.load_numpy(CHECKPOINT, "opt_state"))
    assert stored
    for name, array in stored.items():
        np.testing.assert_array_equal(state[f"opt_state/{name}"], array)
    assert int(state["step"]) == 0


@pytest.mark.parametrize(
    ("overrides", "changes", "message"),
    [
        ([("model.hidden_size", "12")], {}, "only the vocabulary, the positions and the number"),
        ([("model.hidden_dropout_prop", "0")], {}, "did you mean 'hidden_dropout_prob'"),
        ([("model.name", "xlnet")], {}, "config.model.name: got 'xlnet', expected 'bert', as in"),
    ],
)
def test_other_shapes_are_refused(folder, overrides, changes, message):
    with pytest.raises(UserError, match=message):
        start(overrides, **changes)


def test_the_optimizer_of_another_model_is_refused(folder):
    config = bertjax.load_config("spanbert:tiny", FIELDS)
    config = initialization.with_model(config, str(SAVED / "run"), optimizer=True)
    with pytest.raises(UserError, match=r"--init_optimizer: .*leave the option out"):
        pretrain_job.prepare(config, "run", lambda line: None)


def test_layers_of_a_deeper_and_a_shallower_stack():
    assert initialization.choose_layers(2, 5) == [0, 1, 0, 1, 0]
    assert initialization.choose_layers(12, 6) == [0, 2, 4, 6, 8, 10]
    assert initialization.choose_layers(3, 3) == [0, 1, 2]
    assert initialization.choose_layers(7, 9, period=3) == [0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert initialization.choose_layers(9, 4, period=3) == [0, 1, 5, 6]


def test_positions_are_repeated_after_the_offset():
    table = np.arange(5.0)[:, None]
    found = initialization.repeat_positions(table, length=9, offset=2)
    np.testing.assert_array_equal(found[:, 0], [0, 1, 2, 3, 4, 2, 3, 4, 2])
    shorter = initialization.repeat_positions(table, length=4, offset=2)
    np.testing.assert_array_equal(shorter[:, 0], [0, 1, 2, 3])


def test_new_pieces_are_means_of_their_parts(tmp_path):
    def load(name, *pieces):
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        (tmp_path / name).mkdir()
        (tmp_path / name / "vocab.txt").write_text("\n".join([*special, *pieces, ""]))
        return tokenizers.load(tmp_path / name / "vocab.txt")

    old = load("old", "b", "a", "##b", "##c")
    new = load("new", "a", "abc", "b", "x", "##bc", "##ba")
    pieces = initialization.match_pieces(new, old)
    assert pieces == [[0], [1], [2], [3], [4], [6], [6, 7, 8], [5], [], [7, 8], []]
    table = np.arange(18.0).reshape(2, 9)
    found = initialization.average_rows(pieces, table, axis=1)
    expected = [0, 1, 2, 3, 4, 6, 7, 5, 4, 7.5, 4]
    np.testing.assert_array_equal(found, [expected, [9 + n for n in expected]])


def test_a_config_with_init_is_read_again(folder):
    config = initialization.with_model(
        bertjax.load_config("roberta:tiny", FIELDS), str(SAVED / "run")
    )
    (folder / "config.json").write_text(configs.to_json(config))
    again = bertjax.load_config("config.json")
    assert again.init.encoder == config.init.encoder


def test_fields_of_the_model_can_be_changed_in_python(folder):
    config = bertjax.load_config("roberta:tiny", FIELDS)
    model = str(SAVED / "run")
    with pytest.raises(UserError, match="did you mean 'hidden_dropout_prob'"):
        bertjax.pretrain(config, "run", init=model, init_overrides={"model.hidden_dropout": 0.3})
    with pytest.raises(UserError, match="without init"):
        bertjax.pretrain(config, "run", init_overrides={"model.hidden_dropout_prob": 0.3})
    with pytest.raises(UserError, match=r"init_overrides: got 'data\.batch_size', expected fields"):
        bertjax.pretrain(config, "run", init=model, init_overrides={"data.batch_size": 4})
    changes = {"model.hidden_dropout_prob": 0.37}
    result = bertjax.pretrain(config, "run", init=model, init_overrides=changes)
    assert result.summary["config"]["model"]["hidden_dropout_prob"] == 0.37
    assert result.summary["config"]["model"]["hidden_size"] == 8


@pytest.mark.slow
def test_a_hugging_face_folder_is_continued_by_the_command(folder, capsys):
    bertjax.load(SAVED / "run").save_pretrained(folder / "released")
    fields = {**FIELDS, "optimizer.learning_rate": 1e-3}
    options = [f"--config.{name}={value}" for name, value in fields.items()]
    words = ["pretrain", "--config", "roberta:tiny", "--init", "released", *options]
    assert cli.main([*words, "--workdir", "run"]) == 0
    printed = capsys.readouterr()
    assert "init        " in printed.out + printed.err
    assert ": encoder, mlm" in printed.out + printed.err
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["config"]["model"]["hidden_size"] == 8
    assert summary["config"]["init"]["model"] == "released"
    bertjax.load("run").save_pretrained(folder / "exported")
    assert bertjax.load(folder / "exported").config.model.hidden_size == 8

    tokenizers.train(["other words in it"], kind="wordpiece", vocab_size=60).save("other")
    prepare(["text.txt"], folder / "other", folder / "corpus", validation_fraction=0.3, workers=1)
    kept = [option for option in words if ".input=" not in option and "_fraction=" not in option]
    words = [*kept, "--config.data.corpus=corpus", "--workdir", "adapted"]
    assert cli.main(words) == 2
    assert "error: tokenizer mismatch: got fingerprint" in capsys.readouterr().err
    assert cli.main([*words, "--config.tokenizer.path=corpus/tokenizer"]) == 0
    printed = capsys.readouterr()
    assert " pieces kept, " in printed.out + printed.err
