"""The copy of a run in a bucket on this machine; uploads are tested in `io/test_storage.py`."""

import pathlib

import pytest

from bertjax.io import copies, storage
from bertjax.runs import bucket_sync


@pytest.mark.parametrize("names", [[], ["checkpoints/8/integrity.json"]])
def test_the_copy_of_a_run_that_was_deleted_from_the_bucket_is_removed(
    names, tmp_path, monkeypatch
):
    """A summary that was left would end the next run as complete, without a step."""
    monkeypatch.setattr(copies, "cache_path", lambda purpose, path: tmp_path / purpose)
    monkeypatch.setattr(storage, "to_path", pathlib.PurePosixPath)
    monkeypatch.setattr(storage, "list_files", lambda path: dict.fromkeys(names, (1, "1")))
    folder = bucket_sync.local_path("gs://bucket/runs/it")
    folder.mkdir()
    (folder / "summary.json").write_text("{}")
    assert bucket_sync.local_folder("gs://bucket/runs/it") == folder
    assert (folder / "summary.json").exists() == bool(names)
