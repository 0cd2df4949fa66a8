"""Runs written by an earlier version load: names in checkpoints and in `config.json` are pinned.

`data_fixtures/saved_runs` holds a tiny BERT pretrained for 4 steps on `text.txt` with MLM and NSP
(`run`), fine-tuned on RTE (`finetuned`), and the values expected here were printed by the version
that wrote them. Do not regenerate them to make a test pass: map the old name when loading.
"""

import json
import pathlib
import shutil

import pytest

from bertjax.config import load_config
from bertjax.runs import workdir
from bertjax.train.checkpoint import origin

SAVED = pathlib.Path(__file__).parent / "data_fixtures" / "saved_runs"
PARAMETERS = "d88a82f0fce4892412a1d3ac718e33c023445e91e950212ecb98582f40d531f2"
OPTIMIZER = "d34fbf385dcb76f1e967e1d633cc5d8a1fdfe10bba5886c0dfe2be4ad8e76138"
HELD_OUT_LOSS = 5.304064687093099


@pytest.fixture
def folder(tmp_path):
    """A copy of the runs, which commands write to."""
    return pathlib.Path(shutil.copytree(SAVED, tmp_path / "saved_runs"))


def test_the_checkpoint_of_a_pretraining_is_read(folder, run_bertjax):
    result = run_bertjax("inspect", folder / "run" / "checkpoints" / "4", "--json")
    assert result.returncode == 0, result.stderr
    content = json.loads(result.stdout)
    assert content["step"] == 4
    assert (content["parameters_sha256"], content["optimizer_sha256"]) == (PARAMETERS, OPTIMIZER)


@pytest.mark.slow
def test_a_pretraining_resumes(root, folder, run_bertjax):
    """The corpus has the same fingerprint, the config is the same, and hooks find their state."""
    prepared = run_bertjax(
        "prepare", "--input", "text.txt", "--tokenizer", "vocab", "--output", "corpus",
        "--validation_fraction", 0.3, cwd=folder,
    )  # fmt: skip
    assert prepared.returncode == 0, prepared.stderr
    config = json.loads((folder / "run" / "config.json").read_text())
    fields = {
        **{f"model.{name}": config["model"][name] for name in MODEL},
        **{f"data.{name}": config["data"][name] for name in DATA},
        **{name: config[name] for name in RUN},
        "data.phases": "()",
        "tokenizer.path": "vocab",
        "optimizer.warmup_steps": 2,
        "num_train_steps": 8,
    }
    overrides = [f"--config.{name}={value}" for name, value in fields.items()]
    words = ["--config", root / "configs" / "bert.py:tiny", "--workdir", "run", *overrides]
    result = run_bertjax("pretrain", *words, cwd=folder)
    assert result.returncode == 0, result.stderr
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["steps"] == 8
    # It counts the tokens of the first 4 steps too, as its hooks saved them.
    assert summary["tokens"] == 8 * 4 * 32
    assert summary["mlm_loss"] == pytest.approx(HELD_OUT_LOSS, rel=1e-5)


MODEL = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "vocab_size",
    "precision",
)
DATA = ("max_seq_length", "batch_size", "corpus")
RUN = ("log_every", "eval_every", "eval_examples", "checkpoint_every")


def test_former_names_of_config_fields_are_read(folder):
    path = folder / "run" / "config.json"
    content = json.loads(path.read_text())
    values = {"teacher": "runs/teacher", "init_from_teacher": False}
    later = {**content, "objectives": content["objectives"] | {"soft_targets": values}}
    content["objectives"]["soft_targets"] = {"teacher": "runs/teacher", "begin_from_teacher": False}
    path.write_text(json.dumps(content))

    assert load_config(str(path)).objectives.soft_targets.to_dict() == values
    assert origin.resolve(str(folder / "run")).config == later
    workdir.claim(folder / "run", later).release()  # as the same config


def test_a_fine_tuned_run_predicts(folder, run_bertjax):
    texts = "a text\tanother text\nthe value of a class\tno value\n"
    result = run_bertjax("predict", "--model", folder / "finetuned" / "seed_0", input=texts)
    assert result.returncode == 0, result.stderr
    found = [json.loads(line)["probabilities"] for line in result.stdout.splitlines()]
    for probabilities, expected in zip(
        found, (0.5000624060630798, 0.5000623464584351), strict=True
    ):
        assert probabilities["entailment"] == pytest.approx(expected, abs=1e-6)
        assert probabilities["not_entailment"] == pytest.approx(1 - expected, abs=1e-6)
