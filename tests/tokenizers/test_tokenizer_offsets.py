"""Character offsets of tokens."""

from bertjax.tokenizers.special_tokens import trim_spaces


def test_offsets_exclude_spaces():
    text = " ab  cd \n"
    assert trim_spaces(text, [(0, 3), (1, 3), (3, 8), (4, 7)]) == [(1, 3), (1, 3), (5, 7), (5, 7)]


def test_tokens_of_spaces_have_empty_offsets():
    assert trim_spaces("a   b", [(1, 3), (2, 2)]) == [(3, 3), (2, 2)]
