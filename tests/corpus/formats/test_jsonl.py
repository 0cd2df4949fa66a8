"""JSON lines: detection, the field of the text, and invalid lines."""

import gzip
import json

import pytest

from bertjax.corpus.text import read_documents
from bertjax.errors import UserError
from bertjax.tasks.sequence.files import read_tables


def write(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


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


def test_the_text_field_applies_to_files_with_fields(tmp_path):
    rows = write(tmp_path, "a.jsonl", json.dumps(ROWS[0]))
    prose = write(tmp_path, "b.txt", "prose")
    assert list(read_documents([rows, prose], text_field="content")) == ["one", "prose"]


def test_the_error_for_multiline_json_contains_a_command(tmp_path):
    path = write(tmp_path, "a.json", '{\n"text": "one"}\n')
    with pytest.raises(UserError, match=r"a\.json:1: not a JSON object .* > a\.converted\.jsonl$"):
        list(read_documents([path]))


def test_lone_surrogates_in_json_are_replaced(tmp_path):
    path = write(tmp_path, "a.jsonl", '{"text": "a\\ud800b"}\n')
    (found,) = read_documents([path])
    assert found.encode()
    assert found[0] + found[-1] == "ab"


def test_lone_surrogates_in_the_fields_of_a_table_are_replaced(tmp_path):
    """Each by one character, so that offsets stay valid."""
    row = '{"text": "a\\ud83d b", "other": ["\\uDE00", {"c": "\\ud83d\\ude00"}], "score": 0.1}\n'
    table = read_tables([write(tmp_path, "a.jsonl", row + '{"text": "\\\\ud83d"}\n')])
    assert table.columns == {
        "text": ["a? b", "\\ud83d"],
        "other": [["?", {"c": "\U0001f600"}], None],
        "score": [0.1, None],
    }
