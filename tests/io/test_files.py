"""Atomic writing: a file has its old or its new content, never a part."""

import errno
import os

import pytest

from bertjax.io.files import write_atomic

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(params=[FULL, KeyboardInterrupt()], ids=["full disk", "interruption"])
def failure(request, monkeypatch):
    def fsync(_):
        raise request.param

    monkeypatch.setattr(os, "fsync", fsync)
    return type(request.param)


def test_a_failed_write_leaves_only_the_old_file(tmp_path, failure):
    path = tmp_path / "manifest.json"
    path.write_bytes(b"old")
    with pytest.raises(failure):
        write_atomic(path, b"a longer new one")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_first_write_leaves_no_file(tmp_path, failure):
    with pytest.raises(failure):
        write_atomic(tmp_path / "train.index.npy", b"new")
    assert not any(tmp_path.iterdir())


def test_two_writers_of_one_file_do_not_disturb_each_other(tmp_path, monkeypatch):
    path = tmp_path / "train.index.npy"
    others = [b"written in the meantime"]

    def fsync(_):
        if others:
            write_atomic(path, others.pop())

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomic(path, b"written last")
    assert path.read_bytes() == b"written last"
    assert list(tmp_path.iterdir()) == [path]


def test_an_open_file_keeps_its_content_while_it_is_replaced(tmp_path):
    path = tmp_path / "progress.json"
    write_atomic(path, b"old")
    with path.open("rb") as stream:
        write_atomic(path, b"new")
        assert stream.read() == b"old"
    assert path.read_bytes() == b"new"
