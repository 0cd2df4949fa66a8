"""Which characters a token covers, without the spaces around them."""

from collections.abc import Iterable


def trim_spaces(text: str, spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Takes the white space off both ends of each (start, end).

    Tokens that mark the beginning of a word by the space before it cover that space; answers and
    names in a text do not include it. A token of nothing but spaces covers nothing, at its end.
    """
    trimmed = []
    for start, end in spans:
        covered = text[start:end]
        trimmed.append((end - len(covered.lstrip()), start + len(covered.rstrip())))
    return [(start, max(start, end)) for start, end in trimmed]
