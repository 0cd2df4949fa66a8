"""Atomic writing: a file has its old or its new content, never a part."""

import errno
import os

import pytest

from bertjax.io.files import write_atomic


@pytest.fixture
def full_disk(monkeypatch):
    def fsync(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)


def test_a_failed_write_leaves_only_the_old_file(tmp_path, full_disk):
    path = tmp_path / "manifest.json"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, b"a longer new one")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_first_write_leaves_no_file(tmp_path, full_disk):
    with pytest.raises(OSError, match="No space left"):
        write_atomic(tmp_path / "train.index.npy", b"new")
    assert not any(tmp_path.iterdir())


def test_an_open_file_keeps_its_content_while_it_is_replaced(tmp_path):
    path = tmp_path / "progress.json"
    write_atomic(path, b"old")
    with path.open("rb") as stream:
        write_atomic(path, b"new")
        assert stream.read() == b"old"
    assert path.read_bytes() == b"new"
