"""Resolution of inputs to files and datasets."""

import pytest

from bertjax.corpus.sources import Source, describe_repeated, find_overlap, find_sources


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)


def test_a_file_is_one_source_under_all_its_paths(tmp_path):
    inputs = ["a.txt", "./a.txt", str(tmp_path / "a.txt"), "*.txt"]
    assert [source.name for source in find_sources(inputs)] == ["a.txt", "b.txt"]


def test_repeated_files_are_reported(tmp_path):
    assert describe_repeated(["*.txt", "python-docs"]) is None
    output = describe_repeated(["a.txt", "a.txt", str(tmp_path / "a.txt")])
    assert output == "note: the inputs match a.txt 3 times; each file is read once"
    assert "a.txt 2 times, and 1 other file" in describe_repeated(["*.txt", "*.txt"])


def test_held_out_files_that_are_inputs_are_listed(tmp_path):
    inputs, held_out = find_sources(["*.txt"]), [Source(str(tmp_path / "b.txt")), Source("c")]
    assert find_overlap(inputs, held_out) == [str(tmp_path / "b.txt")]
