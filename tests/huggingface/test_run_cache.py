"""Hugging Face folders in place of runs: imported once, as the start of any training."""

import json
import shutil

import pytest

import bertjax
from bertjax.errors import UserError
from bertjax.huggingface import importing, run_cache
from bertjax.io import files
from bertjax.runs import finetune_job, initialization


@pytest.fixture
def folder(save_pretrained, tmp_path, monkeypatch):
    monkeypatch.setenv(files.CACHE_VARIABLE, str(tmp_path / "cache"))
    return str(save_pretrained(tmp_path / "hf_model"))


def test_a_folder_is_imported_once(folder, monkeypatch):
    source = run_cache.resolve(folder)
    assert source.checkpoint.is_dir()
    monkeypatch.delattr(importing, "read")
    assert run_cache.resolve(folder) == source
    fresh = run_cache.resolve(f"random:{folder}")
    assert (fresh.config, fresh.checkpoint) == (source.config, None)
    assert run_cache.resolve(f"{source.run}@0") == source


def test_a_fine_tuning_before_its_first_checkpoint_is_unfinished(tmp_path):
    config = {"task": {"name": "sequence"}, "keep_checkpoints": True}
    (tmp_path / "seed_0" / "checkpoints").mkdir(parents=True)
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name in ("", "@best", "/seed_0"):
        with pytest.raises(UserError, match=r"is unfinished: .* again, which resumes it$"):
            run_cache.find_run(f"{tmp_path}{name}")
    assert run_cache.find_run(tmp_path, trained=False) == str(tmp_path)
    (tmp_path / "checkpoints" / "0").mkdir(parents=True)
    (tmp_path / "checkpoints" / "0" / "integrity.json").touch()  # as in an imported model
    assert run_cache.find_run(tmp_path) == str(tmp_path)
    shutil.rmtree(tmp_path / "checkpoints")
    config["keep_checkpoints"] = False
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert run_cache.find_run(tmp_path) == str(tmp_path)


def test_values_of_other_types_are_refused(tmp_path):
    workdir = str(tmp_path / "run")
    recipe = bertjax.load_config("task:tiny")
    with pytest.raises(UserError, match="init: got None, expected a run, such as"):
        bertjax.finetune(recipe, init=None, data="table.csv", workdir=workdir)
    with pytest.raises(UserError, match=r"got 'task:tiny', .*load_config\('task:tiny'\)"):
        bertjax.finetune("task:tiny", init="runs/bert", data="table.csv", workdir=workdir)
    with pytest.raises(UserError, match=r"got 'bert:tiny', .*load_config\('bert:tiny'\)"):
        bertjax.pretrain("bert:tiny", workdir)


def test_training_starts_from_a_folder(folder, tmp_path):
    config = initialization.with_model(bertjax.load_config("roberta:base"), folder)
    assert (config.model.hidden_size, config.init.model) == (16, folder)

    table = tmp_path / "table.csv"
    table.write_text("text,label\n" + "a b,good\nc d,bad\n" * 20)
    recipe = bertjax.load_config("task:tiny", {"data.max_seq_length": 16})
    job = finetune_job.prepare(recipe, init=folder, data=str(table), workdir=tmp_path / "run")
    assert job.config.model.hidden_size == 16
    assert job.origin.checkpoint is not None
