"""WikiExtractor's files: tags, truncated files, and real ones."""

import gzip

import pytest

from bertjax.corpus.sources import Source, find_sources
from bertjax.corpus.text import read_documents, read_source
from bertjax.errors import UserError

WIKI = """\
<doc id="1" url="http://x/1" title="One">
One

First paragraph.
Heading.
Second with <doc inside.
</doc>
<doc id="2" url="http://x/2" title="Nothing">
Nothing



</doc>
<doc id="3" url="http://x/3" title="Three">
Three

Body.
</doc>
"""


def write(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    return str(tmp_path / name)


def test_wikiextractor_tags_are_removed_and_titles_kept(tmp_path):
    path = write(tmp_path, "wiki_00", WIKI)
    first = "One\n\nFirst paragraph.\nHeading.\nSecond with <doc inside."
    assert [d.text for d in read_source(Source(path))] == [first, "", "Three\n\nBody."]


def test_a_long_paragraph_is_kept(tmp_path):
    path = write(tmp_path, "wiki_00", WIKI.replace("Body.", "word " * 600_000 + "\nEnd."))
    _, empty, *texts = (document.text for document in read_source(Source(path)))
    assert not empty
    assert " ".join(texts).split() == ["Three", *["word"] * 600_000, "End."]


def test_truncated_wikiextractor_output_is_refused(tmp_path):
    path = write(tmp_path, "wiki_00", WIKI.removesuffix("</doc>\n"))
    with pytest.raises(UserError, match="the last document has no </doc>"):
        list(read_documents([path]))
    path = write(tmp_path, "wiki_01", WIKI + "more\n")
    with pytest.raises(UserError, match="wiki_01:19: got text outside"):
        list(read_documents([path]))


def test_real_wikipedia_has_the_known_number_of_documents(shared_data):
    pattern = str(shared_data / "corpus/enwiki_heldout/*.gz")
    sources = find_sources([pattern])
    opened = 0
    for source in sources:
        with gzip.open(source.name, "rt") as stream:
            opened += stream.read().count("<doc id=")
    found = [document.text for source in sources for document in read_source(source)]
    assert len(found) == opened
    assert list(read_documents([pattern])) == [document for document in found if document]
    assert not any("<doc id=" in document or "</doc>" in document for document in found)
