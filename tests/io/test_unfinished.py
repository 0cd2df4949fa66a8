"""Folders of finished parts: of one process, and only as long as they have parts."""

import json

import pytest

from bertjax.errors import UserError
from bertjax.io.unfinished import parts_folder


def test_a_folder_without_parts_is_removed(tmp_path):
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), parts_folder(tmp_path / "a.npz", {}):
            raise error
        assert not list(tmp_path.iterdir())


def test_settings_without_parts_are_replaced(tmp_path):
    killed = tmp_path / ".a.npz.unfinished"
    killed.mkdir()
    (killed / "lock").touch()
    (killed / ".settings.json.0.part").touch()
    (killed / "settings.json").write_text('{"layers": [1]}')
    with parts_folder(tmp_path / "a.npz", {"layers": [2]}) as folder:
        assert json.loads((folder / "settings.json").read_text()) == {"layers": [2]}


def test_one_process_writes_an_output(tmp_path):
    with parts_folder(tmp_path / "a.npz", {}) as folder:
        assert folder == tmp_path / ".a.npz.unfinished"
        second = parts_folder(tmp_path / "a.npz", {})
        with pytest.raises(UserError, match=r"another process is writing .*a\.npz: wait"):
            second.__enter__()
        with parts_folder(tmp_path / "b.npz", {}):
            pass
    assert not list(tmp_path.iterdir())
