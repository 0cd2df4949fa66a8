"""WARC archives with plain text, such as the WET files of Common Crawl.

A document is a record of type `conversion`, or another one whose content is plain text. Archives of
web pages have to be converted first: there are many ways to extract the text of a page.
"""

from collections.abc import Iterator
from typing import Any

from bertjax.corpus.documents import Document, decode
from bertjax.corpus.format import ReadOptions, TextFormat, import_extra
from bertjax.errors import UserError
from bertjax.io import file_kinds
from bertjax.io.inputs import open_decompressed, reading_errors

_CONTENT_TYPES = ("conversion", "resource", "response")
"""Types of records with content; others describe the archive or requests."""


def read(path: str, options: ReadOptions) -> Iterator[Document]:
    """Read a document from every record with plain text."""
    iterator = import_extra(path, "warcio.archiveiterator", "warc").ArchiveIterator
    failure = import_extra(path, "warcio.recordloader", "warc").ArchiveLoadFailed
    number = 0
    with (
        reading_errors(path, lambda: f"{number:,} records"),
        open_decompressed(path) as stream,
    ):
        if not stream.peek(1):
            raise UserError(f"{path} is empty: expected a WARC archive; remove it from the inputs")
        try:
            for number, record in enumerate(iterator(stream, no_record_parse=False), start=1):
                if record.rec_type in _CONTENT_TYPES:
                    where = f"{path}, record {number:,},"
                    _check_text(where, record)
                    yield decode(where, 0, _content(record), options.errors)
        except failure as error:
            raise ValueError(str(error)) from None


def _check_text(where: str, record: Any) -> None:
    headers = record.http_headers or record.rec_headers
    content_type = (headers.get_header("Content-Type") or "text/plain").partition(";")[0].strip()
    if content_type != "text/plain":
        raise UserError(
            f"{where} is {content_type}, expected plain text as of WET files: extract the text of "
            'pages into JSON lines with a string "text", for example with trafilatura'
        )


def _content(record: Any) -> bytes:
    """Return the content of a record.

    Raises:
      EOFError: It is shorter than its header specifies; warcio itself returns truncated content.
    """
    content = record.content_stream().read()
    if record.http_headers is None and len(content) < record.length:
        raise EOFError("the last record is truncated")
    return content


FORMAT = TextFormat(read, kinds=(file_kinds.WARC,))
