"""Which characters a token covers."""

from bertjax.tokenizers.special_tokens import trim_spaces


def test_spaces_are_taken_off_both_ends():
    text = " ab  cd \n"
    assert trim_spaces(text, [(0, 3), (1, 3), (3, 8), (4, 7)]) == [(1, 3), (1, 3), (5, 7), (5, 7)]


def test_nothing_but_spaces_covers_nothing():
    assert trim_spaces("a   b", [(1, 3), (2, 2)]) == [(3, 3), (2, 2)]
