"""Plain text whose documents are separated by blank lines."""

from collections.abc import Iterator

from bertjax.corpus import documents
from bertjax.corpus.documents import Document, decode
from bertjax.corpus.format import ReadOptions, TextFormat
from bertjax.io.lines import read_lines


def read(path: str, options: ReadOptions) -> Iterator[Document]:
    """Read documents that are separated by blank lines."""
    start, size, document = 0, 0, []
    for offset, line in read_lines(path):
        blank = not line.strip()
        if document and (blank or size + len(line) > documents.MAX_DOCUMENT_LENGTH):
            yield decode(path, start, b"".join(document), options.errors)
            size, document = 0, []
        if not blank:
            start = offset if not document else start
            document.append(line)
            size += len(line)
    if document:
        yield decode(path, start, b"".join(document), options.errors)


FORMAT = TextFormat(read)
