"""Plain text: documents between blank lines, or one in each line."""

import pytest

from bertjax.corpus.sources import Source
from bertjax.corpus.text import read_documents, read_source
from bertjax.errors import UserError


def write(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def test_blank_lines_separate_documents_of_plain_text(tmp_path):
    path = write(tmp_path, "a.txt", "\n\none\nstill one\n \t\ntwo\r\nstill two\r\n\n\n\nthree")
    assert list(read_documents([path])) == ["one\nstill one", "two\nstill two", "three"]


def test_one_document_per_line(tmp_path):
    path = write(tmp_path, "a.txt", "one\n\ntwo\n")
    assert list(read_documents([path], format="lines")) == ["one", "two"]
    assert [d.text for d in read_source(Source(path), format="lines")] == ["one", "", "two"]


@pytest.mark.parametrize("end", [b"\r", b"\n", b"\r\n"])
def test_every_kind_of_line_end_separates_documents(tmp_path, end):
    rows = [b"one", b"still one", b"", b"two", b"", b"\xff"]
    path = write(tmp_path, "a.txt", end.join(rows[:-1]))
    assert list(read_documents([path])) == ["one\nstill one", "two"]
    path = write(tmp_path, "b.txt", end.join(rows))
    location = len(end.join([*rows[:-1], b""]))
    with pytest.raises(UserError, match=f"not UTF-8 at byte {location} "):
        list(read_documents([path]))
