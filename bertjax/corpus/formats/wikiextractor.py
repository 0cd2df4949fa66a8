"""The output of WikiExtractor: documents between <doc> tags."""

import re
from collections.abc import Iterator

from bertjax.corpus import documents
from bertjax.corpus.documents import Document, decode
from bertjax.corpus.format import ReadOptions, TextFormat
from bertjax.errors import UserError
from bertjax.io.lines import read_lines

_DOCUMENT_TAG = re.compile(rb'<doc id="[^"]*"[^>]*>\s*$')


def read(path: str, options: ReadOptions) -> Iterator[Document]:
    """Read documents between <doc> tags: the title on a line, then a paragraph per line.

    A document that consists of its title only is yielded as an empty one, a long one as several.
    """
    inside, has_body, start, size, document = False, False, 0, 0, []
    for number, (offset, line) in enumerate(read_lines(path), start=1):
        opens = line.startswith(b"<doc ") and _DOCUMENT_TAG.match(line) is not None
        closes = line.startswith(b"</doc>")
        # The title is not yielded without text, even if the first paragraph is long.
        is_long = has_body and size + len(line) > documents.MAX_DOCUMENT_LENGTH
        if inside and (opens or closes or is_long):
            yield decode(path, start, b"".join(document) if has_body else b"", options.errors)
            size, document = 0, []
        if opens or closes:
            inside, has_body = opens, False
        elif inside:
            start = offset if not document else start
            has_body = has_body or bool(document and line.strip())
            document.append(line)
            size += len(line)
        elif line.strip():
            raise UserError(
                f"{path}:{number}: got text outside of <doc ...> and </doc>; give --format text if "
                "this is not the output of WikiExtractor"
            )
    if inside:
        raise UserError(f"{path}: the last document has no </doc>; replace the truncated file")


FORMAT = TextFormat(read, starts=lambda path, line: _DOCUMENT_TAG.match(line) is not None)
