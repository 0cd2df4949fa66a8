"""What inputs stand for."""

import pytest

from bertjax.corpus.sources import Source, find_sources, overlap, repeated


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)


def test_a_file_is_one_source_whatever_it_is_called(tmp_path):
    inputs = ["a.txt", "./a.txt", str(tmp_path / "a.txt"), "*.txt"]
    assert [source.name for source in find_sources(inputs)] == ["a.txt", "b.txt"]


def test_repeated_files_are_reported(tmp_path):
    assert repeated(["*.txt", "python-docs"]) is None
    said = repeated(["a.txt", "a.txt", str(tmp_path / "a.txt")])
    assert said == "note: the input names a.txt 3 times; each file is read once"
    assert "a.txt 2 times, and 1 other file" in repeated(["*.txt", "*.txt"])


def test_held_out_files_that_are_inputs_are_found(tmp_path):
    inputs, held_out = find_sources(["*.txt"]), [Source(str(tmp_path / "b.txt")), Source("c")]
    assert overlap(inputs, held_out) == [str(tmp_path / "b.txt")]
