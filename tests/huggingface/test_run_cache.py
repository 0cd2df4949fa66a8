"""Hugging Face folders in place of runs: imported once, as the start of any training."""

import pytest

import bertjax
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


def test_training_starts_from_a_folder(folder, tmp_path):
    config = initialization.with_model(bertjax.load_config("roberta:base"), folder)
    assert (config.model.hidden_size, config.init.model) == (16, folder)

    table = tmp_path / "table.csv"
    table.write_text("text,label\n" + "a b,good\nc d,bad\n" * 20)
    recipe = bertjax.load_config("task:tiny", {"data.max_seq_length": 16})
    job = finetune_job.prepare(recipe, init=folder, data=str(table), workdir=tmp_path / "run")
    assert job.config.model.hidden_size == 16
    assert job.origin.checkpoint is not None
