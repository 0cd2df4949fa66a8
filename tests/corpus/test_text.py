"""Reading documents from all inputs: fields, encoding, long documents, order, and errors."""

import gzip
import json

import pytest

from bertjax.corpus import documents
from bertjax.corpus.sources import Source, find_sources
from bertjax.corpus.text import Document, read_documents, read_source
from bertjax.errors import UserError


def write(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


@pytest.mark.parametrize(("name", "format"), [("a.txt", "auto"), ("a.jsonl", "source-target")])
def test_a_text_field_for_inputs_without_fields_is_refused(tmp_path, name, format):
    path = write(tmp_path, name, '{"source": "a", "target": "b"}' if "json" in name else "prose")
    with pytest.raises(UserError, match="text_field='body': no input has named fields"):
        list(read_documents([path], format=format, text_field="body"))


@pytest.mark.parametrize("inputs", [["python-docs"], ["tfds:lm1b:train"]])
def test_a_file_layout_for_datasets_is_refused(inputs):
    with pytest.raises(UserError, match=r"format 'jsonl' has no effect: got .*expected files"):
        next(read_documents(inputs, format="jsonl"))


def test_binary_data_late_in_a_file_is_refused_as_binary(tmp_path):
    path = write(tmp_path, "a.txt", b"text\n\n" * 20_000 + b"\xff\0\xfe")
    with pytest.raises(UserError, match=r"not UTF-8 .*binary data: remove it from the inputs"):
        list(read_documents([path]))


def test_errors_name_the_byte_that_is_not_utf8(tmp_path):
    content = "first\n\nsecond \u00e9".encode() + b"\xff\xfe tail\n\nthird"
    path = write(tmp_path, "a.txt", content)
    with pytest.raises(UserError, match=rf"a\.txt is not UTF-8 at byte {content.index(0xFF)} "):
        list(read_documents([path]))
    found = list(read_source(Source(path), errors="replace"))
    assert found == [
        Document("first"),
        Document("second \u00e9\ufffd\ufffd tail", replaced=2),
        Document("third"),
    ]


def test_replacement_characters_in_the_text_are_not_counted(tmp_path):
    path = write(tmp_path, "a.txt", "a\ufffdb".encode() + b"\xff")
    assert list(read_source(Source(path), errors="replace")) == [Document("a\ufffdb\ufffd", 1)]


def test_a_byte_offset_counts_decompressed_bytes_over_documents(tmp_path):
    content = b"x" * 1000 + b"\n\n" + b"y" * 10 + b"\x80"
    path = write(tmp_path, "a.txt.gz", gzip.compress(content))
    with pytest.raises(UserError, match="at byte 1,012 "):
        list(read_documents([path]))


def test_a_long_document_is_split(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "MAX_DOCUMENT_LENGTH", 100)
    plain = write(tmp_path, "a.txt", "".join(f"line {n:03}\n" for n in range(40)))
    found = list(read_documents([plain]))
    assert all(len(piece) <= 100 for piece in found)
    assert "\n".join(found).split("\n") == [f"line {n:03}" for n in range(40)]
    rows = write(tmp_path, "a.jsonl", json.dumps({"text": "word " * 60}))
    found = list(read_documents([rows]))
    assert all(len(piece) <= 100 for piece in found)
    assert " ".join(found).split() == ["word"] * 60
    body = [f"line {n:03}" for n in range(40)]
    content = "\n".join(['<doc id="1" url="u" title="T">', "T", "", *body, "</doc>", ""])
    found = list(read_documents([write(tmp_path, "wiki", content)]))
    assert len(found) > 3
    assert [line for piece in found for line in piece.split("\n") if line] == ["T", *body]


def test_inputs_are_read_in_order_and_each_file_once(tmp_path):
    for name in ("b.txt", "a.txt", "c.log"):
        write(tmp_path, name, f"text of {name}")
    (tmp_path / "d.txt").mkdir()
    inputs = [str(tmp_path / "*.log"), str(tmp_path / "*.txt"), str(tmp_path / "a.txt")]
    names = [source.name.rpartition("/")[2] for source in find_sources(inputs)]
    assert names == ["c.log", "a.txt", "b.txt"]


def test_a_file_whose_name_looks_like_a_glob_is_found(tmp_path):
    path = write(tmp_path, "a[1].txt", "here")
    assert list(read_documents([path])) == ["here"]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (["nothing/*.txt"], "no file matches 'nothing/"),
        ([], "no input"),
        (["."], r"\.: got a folder, expected files"),
    ],
)
def test_inputs_without_files_are_refused(inputs, message):
    with pytest.raises(UserError, match=message):
        list(read_documents(inputs))


def test_empty_input_is_a_user_error(tmp_path):
    path = write(tmp_path, "a.txt", "\n \n")
    with pytest.raises(UserError, match="no text in"):
        list(read_documents([path]))


def test_an_unknown_format_names_the_nearest(tmp_path):
    path = write(tmp_path, "a.txt", "x")
    with pytest.raises(UserError, match="did you mean 'jsonl'"):
        list(read_documents([path], format="json"))
