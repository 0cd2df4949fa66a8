"""Pairs of source and target: two fields per line, separated by a tab, or JSON lines.

A pair is a document of two lines, so that tokenizers, encoding in child processes, held-out splits
and fingerprints treat pairs like documents.
"""

from collections.abc import Iterator

from bertjax.corpus.documents import Document, join_pair, read_pairs
from bertjax.corpus.format import ReadOptions, TextFormat


def read(path: str, options: ReadOptions) -> Iterator[Document]:
    """Read a pair of source and target from every line."""
    for source, target in read_pairs(path):
        yield Document(join_pair(source, target))


FORMAT = TextFormat(read)
