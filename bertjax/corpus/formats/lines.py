"""Text with one document per line."""

from collections.abc import Iterator

from bertjax.corpus.documents import Document, decode
from bertjax.corpus.format import ReadOptions, TextFormat
from bertjax.io.lines import read_lines


def read(path: str, options: ReadOptions) -> Iterator[Document]:
    """Read a document from every line."""
    for offset, line in read_lines(path):
        yield decode(path, offset, line, options.errors)


FORMAT = TextFormat(read)
