"""Reading documents from text, JSON lines and WikiExtractor files."""

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


def test_blank_lines_separate_documents_of_plain_text(tmp_path):
    path = write(tmp_path, "a.txt", "\n\none\nstill one\n \t\ntwo\r\nstill two\r\n\n\n\nthree")
    assert list(read_documents([path])) == ["one\nstill one", "two\nstill two", "three"]


def test_one_document_per_line(tmp_path):
    path = write(tmp_path, "a.txt", "one\n\ntwo\n")
    assert list(read_documents([path], format="lines")) == ["one", "two"]
    assert [d.text for d in read_source(Source(path), format="lines")] == ["one", "", "two"]


def test_json_lines_are_detected_by_name_or_first_line(tmp_path):
    rows = [{"text": "one\n\nstill"}, {"id": 7, "text": " two "}, {"text": ""}]
    content = "\n".join(map(json.dumps, rows)) + "\n\n"
    for name in ("a.jsonl", "a.txt"):
        path = write(tmp_path, name, content)
        assert list(read_documents([path])) == ["one\n\nstill", "two"]
    path = write(tmp_path, "a.jsonl.gz", gzip.compress(content.encode()))
    assert list(read_documents([path])) == ["one\n\nstill", "two"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"txt": 1}', r'a\.jsonl:2: the field "text" is missing; no field is a string'),
        ('{"text": 3}', r'a\.jsonl:2: the field "text" is not a string; no field is a string'),
        ("[1]", r'a\.jsonl:2: expected an object with a string "text"'),
        ('{"text": "a"', r"a\.jsonl:2: not a JSON object"),
    ],
)
def test_errors_name_the_invalid_json_line(tmp_path, line, message):
    path = write(tmp_path, "a.jsonl", '{"text": "fine"}\n' + line + "\n")
    with pytest.raises(UserError, match=message):
        list(read_documents([path]))


ROWS = [{"id": 7, "content": "one", "title": "One"}, {"content": "two", "title": "Two"}]


def test_the_text_field_can_be_chosen(tmp_path):
    path = write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, ROWS)))
    assert list(read_documents([path], text_field="content")) == ["one", "two"]
    assert list(read_documents([path], text_field="title")) == ["One", "Two"]
    with pytest.raises(UserError) as error:
        list(read_documents([path]))
    assert str(error.value) == (
        f'{path}:1: the field "text" is missing; string fields: "content", "title"; choose '
        "one with --text_field NAME (in a config: data.text_field)"
    )


@pytest.mark.parametrize(("name", "format"), [("a.txt", "auto"), ("a.jsonl", "source-target")])
def test_a_text_field_for_inputs_without_fields_is_refused(tmp_path, name, format):
    path = write(tmp_path, name, '{"source": "a", "target": "b"}' if "json" in name else "prose")
    with pytest.raises(UserError, match="text_field='body': no input has named fields"):
        list(read_documents([path], format=format, text_field="body"))


@pytest.mark.parametrize("inputs", [["python-docs"], ["tfds:lm1b:train"]])
def test_a_file_layout_for_datasets_is_refused(inputs):
    with pytest.raises(UserError, match=r"format 'jsonl' has no effect: got .*expected files"):
        next(read_documents(inputs, format="jsonl"))


def test_the_text_field_applies_to_files_with_fields(tmp_path):
    rows = write(tmp_path, "a.jsonl", json.dumps(ROWS[0]))
    prose = write(tmp_path, "b.txt", "prose")
    assert list(read_documents([rows, prose], text_field="content")) == ["one", "prose"]


def test_the_error_for_multiline_json_contains_a_command(tmp_path):
    path = write(tmp_path, "a.json", '{\n"text": "one"}\n')
    with pytest.raises(UserError, match=r"a\.json:1: not a JSON object .* > a\.converted\.jsonl$"):
        list(read_documents([path]))


@pytest.mark.parametrize("end", [b"\r", b"\n", b"\r\n"])
def test_every_kind_of_line_end_separates_documents(tmp_path, end):
    rows = [b"one", b"still one", b"", b"two", b"", b"\xff"]
    path = write(tmp_path, "a.txt", end.join(rows[:-1]))
    assert list(read_documents([path])) == ["one\nstill one", "two"]
    path = write(tmp_path, "b.txt", end.join(rows))
    location = len(end.join([*rows[:-1], b""]))
    with pytest.raises(UserError, match=f"not UTF-8 at byte {location} "):
        list(read_documents([path]))


def test_binary_data_late_in_a_file_is_refused_as_binary(tmp_path):
    path = write(tmp_path, "a.txt", b"text\n\n" * 20_000 + b"\xff\0\xfe")
    with pytest.raises(UserError, match=r"not UTF-8 .*binary data: remove it from the inputs"):
        list(read_documents([path]))


def test_lone_surrogates_in_json_are_replaced(tmp_path):
    path = write(tmp_path, "a.jsonl", '{"text": "a\\ud800b"}\n')
    (found,) = read_documents([path])
    assert found.encode()
    assert found[0] + found[-1] == "ab"


WIKI = """\
<doc id="1" url="http://x/1" title="One">
One

First paragraph.
Heading.
Second with <doc inside.
</doc>
<doc id="2" url="http://x/2" title="Nothing">
Nothing



</doc>
<doc id="3" url="http://x/3" title="Three">
Three

Body.
</doc>
"""


def test_wikiextractor_tags_are_removed_and_titles_kept(tmp_path):
    path = write(tmp_path, "wiki_00", WIKI)
    first = "One\n\nFirst paragraph.\nHeading.\nSecond with <doc inside."
    assert [d.text for d in read_source(Source(path))] == [first, "", "Three\n\nBody."]


def test_truncated_wikiextractor_output_is_refused(tmp_path):
    path = write(tmp_path, "wiki_00", WIKI.removesuffix("</doc>\n"))
    with pytest.raises(UserError, match="the last document has no </doc>"):
        list(read_documents([path]))
    path = write(tmp_path, "wiki_01", WIKI + "more\n")
    with pytest.raises(UserError, match="wiki_01:19: got text outside"):
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


def test_real_wikipedia_has_the_known_number_of_documents(shared_data):
    pattern = str(shared_data / "corpus/enwiki_heldout/*.gz")
    sources = find_sources([pattern])
    opened = 0
    for source in sources:
        with gzip.open(source.name, "rt") as stream:
            opened += stream.read().count("<doc id=")
    found = [document.text for source in sources for document in read_source(source)]
    assert len(found) == opened
    assert list(read_documents([pattern])) == [document for document in found if document]
    assert not any("<doc id=" in document or "</doc>" in document for document in found)
