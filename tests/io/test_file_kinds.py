"""Formats other than text are detected by content or name, and prose is never refused."""

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import re
import subprocess
import sys
import tarfile
import zipfile

import numpy as np
import pytest

from bertjax.corpus.sources import Source
from bertjax.corpus.text import detect_format, read_documents, read_source
from bertjax.errors import UserError
from bertjax.io import file_kinds
from bertjax.io.lines import read_head, read_text_lines

CSV = 'id,category\n1,"card, lost"\n2,late\n'


def a_zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.txt", "text")
    return file.getvalue()


def a_tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        info = tarfile.TarInfo("a.txt")
        info.size = 5
        archive.addfile(info, io.BytesIO(b"text\n"))
    return file.getvalue()


def an_npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(9))
    return file.getvalue()


def an_arrow(kind: str) -> bytes:
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"text": ["one", "two\nlines"], "id": [1, 2]})
    file = io.BytesIO()
    if kind == "parquet":
        from pyarrow import parquet

        parquet.write_table(table, file)
    else:
        writer = pa.ipc.new_file if kind == "feather" else pa.ipc.new_stream
        with writer(file, table.schema) as stream:
            stream.write_table(table)
    return file.getvalue()


BINARY = {
    "a ZIP archive": a_zip,
    "a tar archive": a_tar,
    "NumPy arrays": an_npy,
    "a pickle": lambda: pickle.dumps({"text": "a"}),
    "UTF-16 text": lambda: "text é\n\nmore".encode("utf-16"),
    "UTF-32 text": lambda: "text é\n\nmore".encode("utf-32"),
    "a SQLite database": lambda: b"SQLite format 3\0\x10\0\x01\x01\0\x40\x20\x20",
    "an HDF5 file": lambda: b"\x89HDF\r\n\x1a\n\0\0",
    "a safetensors file": lambda: (9).to_bytes(8, "little") + b'{"a": {}}',
    "an image": lambda: b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
}
PAGES = {
    "a PDF file": "%PDF-1.4\n1 0 obj\n",
    "an HTML page": "\n<!-- made by hand -->\n<!DOCTYPE html>\n<p>Text</p>\n",
    "an XML document": '<?xml version="1.0"?>\n<mediawiki>\n',
    "an RTF document": "{\\rtf1\\ansi Text}\n",
    "a table in the columns of CoNLL": "-DOCSTART- -X- O O\n\nEU NNP B-NP B-ORG\n",
}


@pytest.mark.parametrize("kind", [*BINARY, *PAGES])
def test_content_is_detected_under_any_name_and_through_compression(tmp_path, kind):
    content = BINARY[kind]() if kind in BINARY else PAGES[kind].encode()
    for name, written in (("a.txt", content), ("b", gzip.compress(content))):
        path = tmp_path / name
        path.write_bytes(written)
        with pytest.raises(UserError) as error:
            list(read_documents([str(path)]))
        assert str(error.value).startswith(f"{path} is {kind}, expected text: ")
        assert "--errors replace" not in str(error.value)
        assert "\n" not in str(error.value)
        assert ("--format text" in str(error.value)) == (kind in PAGES)


@pytest.mark.parametrize("kind", BINARY)
def test_binary_data_is_refused_whatever_the_chosen_format(tmp_path, kind):
    path = tmp_path / "a.txt"
    path.write_bytes(BINARY[kind]())
    for format in ("text", "lines", "jsonl", "source-target"):
        with pytest.raises(UserError, match=r"a\.txt is an? |a\.txt is (UTF|NumPy)"):
            list(read_source(Source(str(path)), format=format, errors="replace"))


@pytest.mark.parametrize("kind", PAGES)
def test_a_chosen_format_accepts_text_of_other_kinds(tmp_path, kind):
    path = tmp_path / "a.html"
    path.write_text(PAGES[kind])
    assert list(read_documents([str(path)], format="text"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.html", "plain"),
        ("a.html.bz2", bz2.compress(b"plain")),
        ("a.html.xz", lzma.compress(b"plain")),
        ("a.txt", "one\0two\n"),
        ("a.jsonl", '[\n{"text": "a"},\n{"text": "b"}\n]\n'),
        ("a.json", '[{"text": "a"}]'),
    ],
)
def test_names_without_text_are_refused(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=r", expected text: .*; or --format text"):
        list(read_documents([str(path)]))
    assert list(read_documents([str(path)], format="text"))


@pytest.mark.parametrize(
    "text",
    [
        '"I know," said Ann, "that it rains."\nShe left, and so did he.\n' * 20,
        "one,two\n\nthree,four\n" * 20,  # blank lines
        "Apples, pears\nNuts, figs\n" * 20,  # spaces after commas
        "1,000\n2,000\n3,000\n" * 20,  # no header
        "\tindented\n\tas verse is\n" * 20,  # nothing before the tabs
        "a\tb\nc\td\n",  # few lines
        "word\n" * 20,
        "PAR1 is a gene.\n",
        "ID3 is a decision tree.\n",
        "GIF89a files are images.\n",
        "7z archives are small.\n",
        "WARC files hold pages.\n",
        "%PDF- is how such files begin.\n",
        "The <html> element comes first.\n",
        "<p>A paragraph.\n",
        "{\\rtf} is a group.\n",
        "<doc without attributes>\n",
        "progress 10%\r progress 20%\r progress 30%\ndone\n",
    ],
)
def test_prose_is_read(tmp_path, text):
    path = tmp_path / "a.txt"
    path.write_text(text)
    assert "\n\n".join(read_documents([str(path)])).split() == text.split()


def converted(path, tmp_path, column: str) -> str:
    """Run the command that converts a file to text, and return the file that it writes."""
    kind = file_kinds.detect_by_content(str(path), read_head(str(path)))
    kind = kind or file_kinds.detect_by_name(str(path))
    kind = file_kinds.JSON_ARRAY if kind is file_kinds.JSON_LINES else kind
    command = file_kinds.remedy(kind, str(path)).partition(", which has")[0]
    for placeholder in ("COLUMN_NUMBER", "COLUMN"):
        command = command.replace(placeholder, column)
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    environment = os.environ | {"PATH": path}
    subprocess.run(command, shell=True, check=True, cwd=tmp_path, env=environment, timeout=60)
    (made,) = tmp_path.glob("*.converted.*")
    return str(made)


@pytest.mark.parametrize(
    ("name", "content", "column", "format"),
    [
        ("it's.csv", b'id,text\n1,"one,\n  two"\n2,three\n', "text", "lines"),
        (
            "a.csv.gz",
            gzip.compress(b'id,text\n1,"one,\n  two"\n2,three\n', mtime=0),
            "text",
            "lines",
        ),
        ("a.tsv", b"1\tone, two\n2\tthree\n", "2", "lines"),
        ("a.json", b'[{"text": "one, two"},\n{"text": "three"}]', "", "auto"),
        ("a.txt", "one, two\n\nthree".encode("utf-16"), "", "auto"),
        ("train.txt", b"-DOCSTART- O\n\none, O\ntwo O\n\n-DOCSTART- O\n\nthree O\n", "", "auto"),
    ],
)
def test_the_command_in_the_error_converts_to_text(tmp_path, name, content, column, format):
    path = tmp_path / name
    path.write_bytes(content)
    made = converted(path, tmp_path, column)
    assert list(read_documents([made], format=format)) == ["one, two", "three"]


@pytest.mark.parametrize("kind", ["parquet", "feather", "stream"])
def test_the_command_for_arrow_converts_to_json_lines(tmp_path, kind):
    path = tmp_path / "data"
    path.write_bytes(an_arrow(kind))
    assert list(read_documents([converted(path, tmp_path, "text")])) == ["one", "two\nlines"]


def test_messages_about_tables_lead_to_another_table(tmp_path):
    for name, content, remedy in [
        ("a.csv", "text,label\na,b\n".encode("utf-16"), "a.converted.csv"),
        ("a.json", b'[{"text": "a"}]', "a.converted.jsonl"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=rf", expected a table: .* > {re.escape(remedy)}$"):
            detect_format(str(tmp_path / name), is_table=True)


def test_every_kind_has_a_conversion_command_that_quotes_file_names():
    for kind in (*file_kinds.KINDS, file_kinds.JSON_ARRAY, file_kinds.NUL_BYTES):
        for path in ("a b/it's.x.gz", "plain.x"):
            output = file_kinds.remedy(kind, path)
            assert "{read}" not in output
            assert "it's.x.gz" not in output  # quoted for a shell, or not named


def test_other_formats_are_refused_where_lines_are_texts(tmp_path, monkeypatch):
    for name, content in (
        ("a.csv", CSV),
        ("a.jsonl", '{"text": "a"}\n'),
        ("a", PAGES["a PDF file"]),
    ):
        path = tmp_path / name
        path.write_text(content)
        with pytest.raises(UserError, match="expected one text per line: "):
            read_text_lines(str(path), tables=())
    assert [text for _, text in read_text_lines(str(tmp_path / "a.jsonl"))] == ['{"text": "a"}']
    allowed = read_text_lines(str(tmp_path / "a.csv"), tables=(file_kinds.CSV,))
    assert [text for _, text in allowed] == CSV.splitlines()
    for content in (an_npy(), a_tar(), b"WARC/1.0\r\n", "text".encode("utf-16-le")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        with pytest.raises(UserError, match=r"standard input is .*, expected one text per line"):
            list(read_text_lines(None))


def test_released_files_are_detected_correctly(shared_data):
    refused = [
        *("glue/SST-2/train.tsv", "glue/CoLA/train.tsv", "kbert/book_review/train.tsv"),
        *("ner/conll2003/train.txt", "squad/v1.1_xquad_en.json"),
    ]
    for name in refused:
        with pytest.raises(UserError):
            list(read_documents([str(shared_data / name)]))
    for pattern in ("corpus/*/wiki_0*.gz", "vocab/*/vocab.txt"):
        for path in shared_data.glob(pattern):
            assert file_kinds.detect_by_content(str(path), read_head(str(path))) is None
            assert file_kinds.detect_table(read_head(str(path))) is None
    rows = list(read_documents([str(shared_data / "banking77/train.csv")]))
    assert len(rows) == 10_003
    rows = list(read_documents([str(shared_data / "glue/SST-2/train.tsv")], text_field="sentence"))
    assert len(rows) == 67_349
    rows = list(read_documents([str(shared_data / "retrieval/cranfield/corpus.jsonl.gz")]))
    with open(shared_data / "retrieval/cranfield/queries.jsonl", encoding="utf-8") as file:
        assert json.loads(file.readline())["text"]
    assert len(rows) > 1390
