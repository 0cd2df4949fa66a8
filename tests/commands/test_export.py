"""bertjax export: a run becomes a folder that transformers loads."""

import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import build, catalog
from bertjax import config as configs
from bertjax import pretrained as pretrained_models
from bertjax.commands import export
from bertjax.errors import UserError
from bertjax.huggingface import importing
from bertjax.huggingface.model import read_arrays, write_arrays
from bertjax.pretrainer import Pretrainer
from bertjax.profiling import dummy
from bertjax.tokenizers import tokenizer as tokenizers
from bertjax.train.checkpoint import restore
from bertjax.train.checkpoint.manager import Checkpoints
from bertjax.train.checkpoint.trees import num_parameters

SENTENCES = [f"{word} {'a b' if number % 2 else 'y z'}" for number, word in enumerate("cdefghijkl")]
CORPUS = "c" * 64


@pytest.fixture(scope="module")
def pretrained(save_pretrained, tmp_path_factory) -> pathlib.Path:
    """A run with two checkpoints, of which the first is the best."""
    folder = tmp_path_factory.mktemp("runs") / "pretrained"
    return make_run(save_pretrained, folder, ("mlm", "sentence_pair"))


def make_run(save_pretrained, folder, objectives, **model) -> pathlib.Path:
    vocabulary = save_pretrained(folder.with_name(f"{folder.name}_hf_model")) / "vocab.txt"
    tokenizer = tokenizers.load(vocabulary)
    tokenizer.save(str(folder / "tokenizer"))
    sizes = {
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 24,
        "initializer_range": 0.3,
    }
    overrides = [(f"model.{name}", str(value)) for name, value in sizes.items()]
    left_out = {"mlm", "sentence_pair"} - set(objectives)
    overrides += [(f"objectives.{name}", "none") for name in left_out]
    overrides += [("data.phases", "()"), ("data.batch_size", "8")]
    config = configs.load_config("configs/bert.py:tiny", overrides)
    with config.unlocked():
        config.model.update(model)
    heads = build.objectives(config.objectives, build.tokenizer_fields(config, tokenizer))
    pretrainer = Pretrainer(build.encoder(config.model), heads)
    rows = dummy.random_batch(config, build.Phase(1, 8, 8))
    trainer = build.trainer(config, pretrainer, build.make_mesh(config), rows)
    (folder / "config.json").write_text(configs.to_json(config))
    with Checkpoints(folder, provenance={"corpus": CORPUS}) as checkpoints:
        for step, loss in ((20, 1.5), (30, 2.5)):
            state = jax.tree.map(lambda x, by=step / 20: x * by, trainer.create_state().params)
            metrics = {"held_out/mlm/loss": loss, "loss": 9.0}
            checkpoints.save({"params": state}, step=step, metrics=metrics)
    return folder


@pytest.fixture(scope="module")
def glue(tmp_path_factory) -> pathlib.Path:
    """CoLA data with the same examples for training and evaluation."""
    folder = tmp_path_factory.mktemp("glue") / "CoLA"
    folder.mkdir()
    lines = [f"x\t{number % 2}\t\t{text}" for number, text in enumerate(SENTENCES)]
    for split in ("train", "dev"):
        (folder / f"{split}.tsv").write_text("\n".join([*lines, ""]))
    return folder.parent


@pytest.fixture(scope="module")
def finetuned(run_bertjax, pretrained, glue, tmp_path_factory) -> pathlib.Path:
    """A fine-tuning of the run by `bertjax finetune`, with kept checkpoints."""
    workdir = tmp_path_factory.mktemp("runs") / "cola"
    words = ["--config", "configs/glue.py:cola,tiny", "--init", pretrained, "--data", glue]
    fields = ["keep_checkpoints=true", "data.max_seq_length=16", "data.padded_lengths=()"]
    options = [f"--config.{field}" for field in (*fields, "model.precision=float32")]
    output = run_bertjax("finetune", *words, "--workdir", workdir, *options)
    assert output.returncode == 0, output.stderr
    return workdir


def export_run(source, target, *options) -> dict:
    """Export a run and return the config.json of transformers."""
    export.main(["--model", str(source), "--output", str(target), *map(str, options)])
    return json.loads((target / "config.json").read_text())


def test_a_run_becomes_a_hugging_face_folder(run_bertjax, pretrained, tmp_path):
    target = tmp_path / "hf_model"
    output = run_bertjax("export", "--model", pretrained, "--output", target)
    assert output.returncode == 0, output.stderr
    assert output.stderr == ""
    arrays = read_arrays(target)
    assert output.stdout == (
        f"{target}: BertForPreTraining with {num_parameters(arrays):,} parameters\n"
    )
    card = (target / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    for fact in ("| steps | 30 |", "| held_out/mlm/loss | 2.5 |", f"| corpus, sha256 | {CORPUS} |"):
        assert fact in card
    assert "pipeline_tag: fill-mask" in card
    assert '"initializer_range": 0.3' in card
    assert "BertForPreTraining.from_pretrained" in card
    assert [path.name for path in tmp_path.iterdir()] == ["hf_model"]


def test_checkpoints_are_selected_by_step_or_rank(pretrained, tmp_path):
    name = "bert.embeddings.word_embeddings.weight"
    words = {}
    for which in ("20", "30", "best"):
        export_run(f"{pretrained}@{which}", tmp_path / which)
        words[which] = read_arrays(tmp_path / which)[name]
    np.testing.assert_array_equal(words["best"], words["20"])
    np.testing.assert_allclose(words["30"], 1.5 * words["20"], rtol=1e-6)


def test_the_average_of_the_weights_is_loaded_and_exported(pretrained, tmp_path):
    run = pathlib.Path(shutil.copytree(pretrained, tmp_path / "run"))
    params, average = (
        jax.tree.map(jnp.asarray, restore.load_numpy(run / "checkpoints" / step, "params"))
        for step in ("30", "20")
    )
    with Checkpoints(run) as checkpoints:
        checkpoints.save({"params": params, "average": {"params": average}}, step=40)
    export_run(run, tmp_path / "averaged")
    export_run(f"{pretrained}@20", tmp_path / "20")
    exported, expected = (read_arrays(tmp_path / folder) for folder in ("averaged", "20"))
    for name, array in expected.items():
        np.testing.assert_array_equal(exported[name], array)
    loaded = pretrained_models.load(str(run)).load_params("encoder", "mlm")
    jax.tree.map(np.testing.assert_array_equal, loaded["mlm"], average["mlm"])


def test_import_then_export_is_byte_identical(save_pretrained, run_bertjax, tmp_path):
    source = save_pretrained(tmp_path / "hf_model")
    importing.write(importing.read(source), tmp_path / "run")
    output = run_bertjax("export", "--model", tmp_path / "run", "--output", tmp_path / "back")
    assert output.returncode == 0, output.stderr
    for name in ("model.safetensors", "vocab.txt"):
        assert (tmp_path / "back" / name).read_bytes() == (source / name).read_bytes()


def test_half_precision_is_kept(save_pretrained, tmp_path):
    source = save_pretrained(tmp_path / "hf_model")
    half = {name: array.astype(np.float16) for name, array in read_arrays(source).items()}
    write_arrays(source, half)
    importing.write(importing.read(source), tmp_path / "run")
    export_run(tmp_path / "run", tmp_path / "back")
    back = read_arrays(tmp_path / "back")
    assert all(back[name].tobytes() == array.tobytes() for name, array in half.items())


def test_an_untrained_pooler_is_not_exported(save_pretrained, tmp_path):
    run = make_run(save_pretrained, tmp_path / "run", ("mlm",))
    config = export_run(run, tmp_path / "hf_model")
    assert config["architectures"] == ["BertForMaskedLM"]
    names = read_arrays(tmp_path / "hf_model")
    assert not [name for name in names if "pooler" in name]
    assert "cls.predictions.bias" in names


@pytest.mark.parametrize(
    ("model", "model_type"),
    [
        ({"type_vocab_size": 1, "position_offset": 1}, "roberta"),
        ({"type_vocab_size": 0, "num_pooler_layers": 0}, "distilbert"),
    ],
)
def test_hyperparameters_determine_the_architecture(save_pretrained, tmp_path, model, model_type):
    run = make_run(save_pretrained, tmp_path / "run", ("mlm",), **model)
    config = export_run(run, tmp_path / "hf_model")
    assert config["model_type"] == model_type
    prefixes = {name.partition(".")[0] for name in read_arrays(tmp_path / "hf_model")}
    assert model_type in prefixes


def test_positions_that_conflict_with_the_padding_id(save_pretrained, tmp_path):
    fields = {"type_vocab_size": 1, "position_offset": 2}
    run = make_run(save_pretrained, tmp_path / "run", ("mlm",), **fields)
    with pytest.raises(UserError, match="position_offset=2 makes pad_token_id=1 in transformers"):
        export_run(run, tmp_path / "hf_model")
    assert not (tmp_path / "hf_model").exists()


def test_a_fine_tuned_run_is_a_classifier(finetuned, tmp_path):
    config = export_run(finetuned, tmp_path / "hf_model")
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["id2label"] == {"0": "0", "1": "1"}  # as the server spells them
    assert (config["finetuning_task"], config["classifier_dropout"]) == ("cola", 0.1)
    card = (tmp_path / "hf_model" / "README.md").read_text()
    results = json.loads((finetuned / "results.json").read_text())
    score = results["over_seeds"]["dev/matthews"]["median"]
    assert f"| cola | dev/matthews | {score:.4f} |" in card
    assert f"step 30, sha256 {results['init']['encoder']}" in card
    again = export_run(finetuned / "seed_0", tmp_path / "seed")
    assert again == config
    importing.write(importing.read(tmp_path / "hf_model"), tmp_path / "run")
    export_run(tmp_path / "run", tmp_path / "back")
    first, second = (tmp_path / name / "model.safetensors" for name in ("hf_model", "back"))
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.slow
def test_transformers_predicts_the_scored_predictions(finetuned, tmp_path):
    torch = pytest.importorskip("torch", reason="needs torch, of the dependency group test-all")
    transformers = pytest.importorskip(
        "transformers", reason="needs transformers, of the group test-all"
    )
    export_run(finetuned, tmp_path / "hf_model")
    opened = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf_model")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf_model")
    with torch.no_grad():
        inputs = opened(SENTENCES, padding=True, return_tensors="pt")
        found = model.eval()(**inputs).logits.argmax(-1).tolist()
    lines = (finetuned / "predictions" / "dev" / "CoLA.tsv").read_text().splitlines()[1:]
    assert found == [int(line.split("\t")[1]) for line in lines]


def test_a_run_without_checkpoints_is_refused(finetuned, tmp_path):
    results = json.loads((finetuned / "results.json").read_text())
    workdir = tmp_path / "cola"
    workdir.mkdir()
    (workdir / "results.json").write_text(json.dumps(results))
    with pytest.raises(UserError, match=r"cannot be loaded .*--config.keep_checkpoints=true"):
        export_run(workdir, tmp_path / "hf_model")
    with pytest.raises(UserError, match="leave out @best"):
        export_run(f"{workdir}@best", tmp_path / "hf_model")
    with pytest.raises(UserError, match="has no finished seed 7"):
        export_run(workdir / "seed_7", tmp_path / "hf_model")


def test_scores_of_fine_tuning_runs_are_in_the_card(pretrained, finetuned, tmp_path):
    export_run(pretrained, tmp_path / "hf_model", "--scores", finetuned)
    card = (tmp_path / "hf_model" / "README.md").read_text()
    assert "| fine-tuned on | metric | median | lowest | highest | seeds |" in card
    assert "| cola | dev/matthews |" in card
    with pytest.raises(UserError, match="initialised from the encoder with sha256"):
        export_run(f"{pretrained}@20", tmp_path / "other", "--scores", finetuned)
    with pytest.raises(UserError, match=r"has no results.json"):
        export_run(pretrained, tmp_path / "other", "--scores", pretrained)
    assert not (tmp_path / "other").exists()


def test_heads_that_transformers_does_not_have_are_left_out(pretrained, tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    for name in ("config.json", "tokenizer"):
        (run / name).symlink_to(pretrained / name)
    made = catalog.load("train/checkpoint", "restore").load_numpy(
        pretrained / "checkpoints" / "20", "params"
    )
    with Checkpoints(run) as checkpoints:
        params = made | {"sbo": {"dense": {"bias": np.zeros(3, np.float32)}}}
        checkpoints.save({"params": jax.tree.map(jax.numpy.asarray, params)}, step=1)
    export_run(run, tmp_path / "hf_model")
    assert "left out (no class of transformers has it): sbo" in capsys.readouterr().err


def test_a_run_with_random_parameters_is_refused(run_bertjax, pretrained, tmp_path):
    words = ["--model", f"random:{pretrained}", "--output", tmp_path / "hf_model"]
    output = run_bertjax("export", *words)
    assert output.returncode == 2
    assert output.stderr.startswith("bertjax export: error: ")
    assert "has untrained weights: specify the folder of a trained run" in output.stderr
    assert output.stderr.count("\n") == 1
    assert not (tmp_path / "hf_model").exists()
