"""Streaming of text: whole characters, and no part of a stop string."""

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


def test_characters_are_not_split():
    assert written("né") == ["n", "", "é"]
    assert written("€") == ["", "", "€"]


def test_a_text_ends_before_a_stop_string():
    assert "".join(written("one. two\n\nthree", ["\n\n"])) == "one. two"
    assert "".join(written("abcabd!", ["abd", "zz"])) == "abc"


def test_a_possible_prefix_of_a_stop_string_is_held_back():
    assert written("xabz", ["abc"]) == ["x", "", "", "abz"]


@pytest.mark.parametrize("stop", [[], ["\n"]])
def test_held_back_text_is_returned_at_the_end(stop):
    stream = TextStream(Bytes(), b"", [*stop, "abc"])
    assert stream.add(ord("a")) == ""
    assert stream.end() == "a"
    assert stream.finished


@pytest.mark.parametrize("stop", [["cd", "bcd"], ["bcd", "cd"]])
def test_of_stop_strings_with_the_same_end_the_longest_applies(stop):
    assert "".join(written("abcd", stop)) == "a"
