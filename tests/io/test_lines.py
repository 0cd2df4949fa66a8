"""Reading lines of plain and compressed files: offsets, encodings, damage."""

import bz2
import gzip
import io
import lzma
import os

import pytest
import zstandard

from bertjax.errors import UserError
from bertjax.io import lines
from bertjax.io.lines import read_lines, read_text_lines

TEXT = b"first line\nsecond\n\nlast without an end"
COMPRESSORS = {
    "plain": lambda content: content,
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.compress,
}


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_every_compression_gives_the_same_lines_and_offsets(tmp_path, suffix):
    path = tmp_path / f"text.{suffix}"
    path.write_bytes(COMPRESSORS[suffix](TEXT))
    expected = [(0, b"first line\n"), (11, b"second\n"), (18, b"\n"), (19, b"last without an end")]
    assert list(read_lines(str(path))) == expected


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz", "zst"])
def test_errors_name_a_truncated_file_and_the_readable_bytes(tmp_path, suffix):
    path = tmp_path / f"text.{suffix}"
    whole = COMPRESSORS[suffix](b"".join(b"line %d\n" % number for number in range(50_000)))
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=rf"text\.{suffix} is truncated or corrupt after .* bytes"):
        list(read_lines(str(path)))


def test_lines_before_the_damage_are_read(tmp_path):
    path = tmp_path / "text.gz"
    whole = gzip.compress(b"".join(b"line %d\n" % number for number in range(500_000)))
    path.write_bytes(whole[: len(whole) // 2])
    found = read_lines(str(path))
    assert [next(found)[1] for _ in range(1000)] == [b"line %d\n" % n for n in range(1000)]


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_corruption_in_the_middle_is_detected(tmp_path, suffix):
    path = tmp_path / f"text.{suffix}"
    content = bytearray(COMPRESSORS[suffix](b"".join(b"%d\n" % n**3 for n in range(50_000))))
    content[len(content) // 2] ^= 0xFF
    content[len(content) // 2 + 1] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(UserError, match="truncated or corrupt"):
        list(read_lines(str(path)))


def test_concatenated_frames_and_members_are_one_file(tmp_path):
    for suffix in ("gz", "bz2", "xz", "zst"):
        path = tmp_path / f"text.{suffix}"
        path.write_bytes(COMPRESSORS[suffix](b"a\nb") + COMPRESSORS[suffix](b"c\n"))
        assert [line for _, line in read_lines(str(path))] == [b"a\n", b"bc\n"], suffix


def test_an_ending_of_compression_on_uncompressed_data_is_refused(tmp_path):
    path = tmp_path / "text.gz"
    path.write_bytes(b"")
    with pytest.raises(UserError, match=r"ends in \.gz"):
        list(read_lines(str(path)))


def test_a_long_line_is_split_after_spaces(tmp_path):
    path = tmp_path / "text"
    content = b"abc defg " * 10 + b"\n" + b"short\n"
    path.write_bytes(content)
    found = list(read_lines(str(path), max_length=25))
    assert [offset for offset, _ in found] == [
        sum(len(line) for _, line in found[:number]) for number in range(len(found))
    ]
    assert b"".join(line for _, line in found) == content
    assert all(len(line) <= 25 for _, line in found)
    assert all(line.endswith((b" ", b"\n")) for _, line in found)


def test_a_line_that_is_one_text_is_whole_or_refused(tmp_path, monkeypatch):
    path = tmp_path / "text"
    path.write_text("word " * 300_000 + "\nlast")
    assert [text[-6:] for _, text in read_text_lines(str(path))] == [" word ", "last"]
    monkeypatch.setattr(lines, "MAX_RECORD_BYTES", 1 << 20)
    path.write_text("x" * (1 << 20))
    assert [len(text) for _, text in read_text_lines(str(path))] == [1 << 20]
    path.write_text("first\n" + "word " * 300_000 + "\nlast")
    with pytest.raises(UserError, match=r"text:2: got a line over 1 MiB, expected less"):
        list(read_text_lines(str(path)))


def test_a_character_is_never_split(tmp_path):
    path = tmp_path / "text"
    text = "\u4f60\u597d\U0001f600\u00e9" * 50
    path.write_text(text)
    pieces = [line.decode() for _, line in read_lines(str(path), max_length=17)]
    assert "".join(pieces) == text
    assert len(pieces) > 30


def test_a_byte_order_mark_is_removed(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbfabc\ndef")
    assert list(read_lines(str(path))) == [(3, b"abc\n"), (7, b"def")]


def test_a_byte_order_mark_of_standard_input_is_removed(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfabc\r\n\xef\xbb\xbfdef"))
    monkeypatch.setattr("sys.stdin", stream)
    assert [text for _, text in read_text_lines(None)] == ["abc", "\ufeffdef"]


def test_bare_carriage_returns_are_line_ends_without_newlines(tmp_path):
    path = tmp_path / "mac.txt"
    row, count = b"row of text\r", 40_000
    path.write_bytes(row * count + b"last")  # longer than a buffer
    found = list(read_lines(str(path)))
    assert found[:2] == [(0, b"row of text\n"), (12, b"row of text\n")]
    assert found[-1] == (12 * count, b"last")
    assert len(found) == count + 1
    path = tmp_path / "mac.txt.gz"
    path.write_bytes(gzip.compress(b"a\r" * 70_000 + b"b\r\nc\nd\r"))
    assert [line for _, line in read_lines(str(path))][-4:] == [b"a\n", b"b\r\n", b"c\n", b"d\n"]


def test_carriage_returns_inside_lines_are_kept(tmp_path):
    path = tmp_path / "log.txt"
    path.write_bytes(b"10%\r20%\r30%\ndone\r\n")
    assert list(read_lines(str(path))) == [(0, b"10%\r20%\r30%\n"), (12, b"done\r\n")]


def test_a_pipe_is_refused(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(UserError, match="got a pipe or a device, expected a regular file"):
        next(read_lines(str(path)))


def test_a_missing_file_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        list(read_lines(str(tmp_path / "nothing")))
