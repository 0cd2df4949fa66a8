"""Text while tokens come: whole characters, and nothing of a stop string."""

import pytest

from bertjax.inference.generate import TextStream


class Bytes:
    """A tokenizer whose tokens are the bytes of UTF-8."""

    def decode(self, ids):
        return bytes(ids).decode(errors="replace")


def written(text, stop=(), prompt="a "):
    stream = TextStream(Bytes(), prompt.encode(), stop)
    parts = []
    tokens = text.encode()
    for place, token in enumerate(tokens):
        parts.append(stream.add(token, last=place == len(tokens) - 1))
        if stream.finished:
            break
    assert "".join(parts) == stream.text
    return parts


def test_a_character_comes_whole():
    assert written("né") == ["n", "", "é"]
    assert written("€") == ["", "", "€"]


def test_a_text_ends_before_a_stop_string():
    assert "".join(written("one. two\n\nthree", ["\n\n"])) == "one. two"
    assert "".join(written("abcabd!", ["abd", "zz"])) == "abc"


def test_what_may_begin_a_stop_string_waits():
    assert written("xabz", ["abc"]) == ["x", "", "", "abz"]


@pytest.mark.parametrize("stop", [[], ["\n"]])
def test_the_end_gives_what_was_held_back(stop):
    stream = TextStream(Bytes(), b"", [*stop, "abc"])
    assert stream.add(ord("a")) == ""
    assert stream.end() == "a"
    assert stream.finished


@pytest.mark.parametrize("stop", [["cd", "bcd"], ["bcd", "cd"]])
def test_of_stop_strings_that_end_together_the_one_that_begins_first_ends_a_text(stop):
    assert "".join(written("abcd", stop)) == "a"
