"""Formats of text: every format yields the same documents, streamed, and damage is one line."""

import bz2
import gzip
import io
import json
import lzma
import sys
import tracemalloc

import numpy as np
import pytest

from bertjax.corpus import format as corpus_format
from bertjax.corpus import text
from bertjax.corpus.sources import Source, find_sources
from bertjax.errors import UserError

TEXTS = ["one, two\nthree", 'a "quoted" é', "last; of all"]
ROWS = [{"id": str(number), "text": text, "other": "x"} for number, text in enumerate(TEXTS)]


def as_csv(separator=",") -> bytes:
    import csv

    stream = io.StringIO()
    writer = csv.DictWriter(stream, ["id", "text", "other"], delimiter=separator)
    writer.writeheader()
    writer.writerows(ROWS)
    return stream.getvalue().encode()


def as_tsv() -> bytes:
    lines = [[row["id"], row["text"].replace("\n", " "), "x"] for row in ROWS]
    return "".join("\t".join(line) + "\n" for line in [["id", "text", "other"], *lines]).encode()


def as_arrow(kind: str, dictionary: bool = False, rows=ROWS) -> bytes:
    pa = pytest.importorskip("pyarrow")
    table = pa.Table.from_pylist([row | {"number": 7} for row in rows])
    if dictionary:
        table = table.set_column(1, "text", table["text"].dictionary_encode())
    stream = io.BytesIO()
    if kind == "parquet":
        from pyarrow import parquet

        parquet.write_table(table, stream, row_group_size=2)
    else:
        with (pa.ipc.new_file if kind == "file" else pa.ipc.new_stream)(
            stream, table.schema
        ) as writer:
            writer.write_table(table, max_chunksize=2)
    return stream.getvalue()


def as_mds(fixed: bool = False) -> bytes:
    """A shard as streaming 0.13 writes it (`streaming/base/format/mds/writer.py`)."""
    names = ["id", "other", "text", "value"]
    config = {
        **{"version": 2, "format": "mds", "column_names": names},
        "column_encodings": ["str", "str", "str", "int"],
        "column_sizes": [None, None, None, 8],
    }
    header = json.dumps(config, sort_keys=True).encode()
    samples = []
    for row in ROWS:
        values = [row["id"].encode(), row["other"].encode(), row["text"].encode(), bytes(8)]
        sizes = np.array([len(value) for value in values[:3]], np.uint32)
        samples.append(sizes.tobytes() + b"".join(values))
    offsets = np.array([0, *map(len, samples)]).cumsum().astype(np.uint32)
    offsets += np.uint32(4 + offsets.nbytes + len(header))
    return np.uint32(len(samples)).tobytes() + offsets.tobytes() + header + b"".join(samples)


def as_wet(members: bool = False) -> bytes:
    def record(kind: str, content: bytes, content_type: str) -> bytes:
        head = (
            f"WARC/1.0\r\nWARC-Type: {kind}\r\nContent-Type: {content_type}\r\n"
            f"WARC-Record-ID: <urn:uuid:1>\r\nWARC-Date: 2026-01-01T00:00:00Z\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        return head.encode() + content + b"\r\n\r\n"

    records = [record("warcinfo", b"software: x\r\n", "application/warc-fields")]
    records += [record("conversion", text.encode(), "text/plain") for text in TEXTS]
    return b"".join(gzip.compress(one, mtime=0) if members else one for one in records)


FILES = {
    "a.csv": as_csv,
    "b.csv": lambda: as_csv(";"),
    "a.parquet": lambda: as_arrow("parquet"),
    "b.parquet": lambda: as_arrow("parquet", dictionary=True),
    "a.arrow": lambda: as_arrow("stream"),
    "a.feather": lambda: as_arrow("file", dictionary=True),
    "a.mds": as_mds,
    "a.wet": as_wet,
    "a.warc.gz": lambda: as_wet(members=True),
}


def write(folder, name, content):
    (folder / name).write_bytes(content)
    return str(folder / name)


def skip_if_not_installed(name):
    if ".w" in name:
        pytest.importorskip("warcio", reason="the extra `warc`")


def compress_zst(content: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor().compress(content)


COMPRESSORS = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": compress_zst,
    ".zstd": compress_zst,
}


@pytest.mark.parametrize("name", FILES)
def test_documents_are_those_that_were_written_in_any_compression(tmp_path, name):
    skip_if_not_installed(name)
    content = FILES[name]()
    for ending, compress in COMPRESSORS.items():
        path = write(tmp_path, name + ending, compress(content))
        if not name.endswith(".gz") or not ending:
            assert list(text.read_documents([path])) == TEXTS


def test_tables_with_tabs_have_no_quotes_and_another_column_may_be_the_text(tmp_path):
    path = write(tmp_path, "a.tsv", as_tsv())
    assert list(text.read_documents([path])) == [text.replace("\n", " ") for text in TEXTS]
    for name in ("a.csv", "a.parquet", "a.arrow", "a.feather", "a.mds"):
        path = write(tmp_path, name, FILES[name]())
        assert list(text.read_documents([path], text_field="id")) == ["0", "1", "2"]


@pytest.mark.parametrize("name", [name for name in FILES if ".w" not in name])
def test_a_missing_column_lists_those_with_strings(tmp_path, name):
    path = write(tmp_path, name, FILES[name]())
    with pytest.raises(UserError, match=r'the column "body" is missing; string columns: ') as error:
        text.check_sources([Source(path)], text_field="body")
    assert '"id"' in str(error.value)
    assert '"text"' in str(error.value)
    assert '"number"' not in str(error.value)
    assert "\n" not in str(error.value)


def test_a_column_that_is_no_string_is_refused(tmp_path):
    for name, field in (("a.parquet", "number"), ("a.arrow", "number"), ("a.mds", "value")):
        path = write(tmp_path, name, FILES[name]())
        with pytest.raises(
            UserError, match=f'the column "{field}" is not a string; string columns'
        ):
            text.check_sources([Source(path)], text_field=field)


@pytest.mark.parametrize("name", FILES)
def test_truncated_empty_and_wrongly_named_files_are_one_line(tmp_path, name):
    skip_if_not_installed(name)
    content = FILES[name]()
    # A table cut at a line end is indistinguishable from a complete one; this cut is in quotes.
    cut = content[: content.index(b"one") + 3] if "csv" in name else content[:-12]
    path = write(tmp_path, name, cut)
    with pytest.raises(UserError, match=r"truncated|malformed") as error:
        list(text.read_documents([path]))
    assert str(error.value).startswith(path)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=r"is empty|truncated or corrupt after 0 bytes"):
        list(text.read_documents([write(tmp_path, name, b"")]))
    name = name.removesuffix(".gz") + ".gz"
    with pytest.raises(UserError, match=r"its name ends in \.gz, but its first bytes are not"):
        list(text.read_documents([write(tmp_path, name, as_csv())]))


def test_every_cut_of_a_binary_file_is_found(tmp_path):
    for name in ("a.parquet", "a.arrow", "a.feather", "a.mds"):
        content = FILES[name]()
        for size in (*range(1, len(content), 37), len(content) - 8):
            with pytest.raises(UserError):
                list(
                    text.read_documents(
                        [write(tmp_path, name, content[:size])],
                        format=name[2:] if name != "a.feather" else "arrow",
                    )
                )


def test_rows_of_another_length_are_refused(tmp_path):
    path = write(tmp_path, "a.csv", b"id,text\n1,one\n2,two,three\n")
    with pytest.raises(UserError, match=r"a\.csv:3: got 3 field\(s\), expected 2 as in the header"):
        list(text.read_documents([path]))


def test_invalid_utf_8_names_the_row_or_is_replaced_and_counted(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    column = pa.array([b"fine", b"b\xffd", None]).cast(pa.binary()).view(pa.string())
    parquet.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    write(tmp_path, "a.csv", b"id,text\n1,fine\n2,b\xffd\n3,\n")
    for name, where in (("a.parquet", "row 2, is not UTF-8 at byte 1"), ("a.csv", "at byte 18")):
        source = Source(str(tmp_path / name))
        with pytest.raises(UserError, match=where):
            list(text.read_source(source))
        found = list(text.read_source(source, errors="replace"))
        assert found == [("fine", 0), ("b\ufffdd", 1), ("", 0)]


def test_pages_in_an_archive_are_refused(tmp_path):
    pytest.importorskip("warcio", reason="the extra `warc`")
    content = as_wet().replace(b"Content-Type: text/plain", b"Content-Type: text/html")
    with pytest.raises(UserError, match=r"record 2, is text/html, expected plain text"):
        list(text.read_documents([write(tmp_path, "a.warc", content)]))


def test_a_missing_package_names_the_extra(tmp_path, monkeypatch):
    for name, module, extra in (
        ("a.parquet", "pyarrow.parquet", "parquet"),
        ("a.arrow", "pyarrow", "parquet"),
        ("a.wet", "warcio.archiveiterator", "warc"),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            path = write(tmp_path, name, FILES[name]())
            with pytest.raises(UserError, match=rf"pip install 'bertjax\[{extra}\]'"):
                list(text.read_documents([path]))


def test_folders_of_datasets_are_inputs(tmp_path):
    """The files of `save_to_disk` of datasets, and of `MDSWriter`, in the order of their index."""
    saved, shards = tmp_path / "saved", tmp_path / "shards"
    saved.mkdir()
    shards.mkdir()
    names = ["data-00001-of-00002.arrow", "data-00000-of-00002.arrow"]
    for name, rows in zip(names, (ROWS[:1], ROWS[1:]), strict=True):
        write(saved, name, as_arrow("stream", rows=rows))
    state = {"_data_files": [{"filename": name} for name in names]}
    write(saved, "state.json", json.dumps(state).encode())
    assert list(text.read_documents([str(saved)])) == TEXTS
    write(saved, "state.json", json.dumps(state | {"_indices_data_files": [{}]}).encode())
    with pytest.raises(UserError, match="flatten_indices"):
        find_sources([str(saved)])
    write(tmp_path, "dataset_dict.json", b'{"splits": ["train", "test"]}')
    with pytest.raises(UserError, match=r"has the splits train, test, expected one: give .*/train"):
        find_sources([str(tmp_path)])
    write(shards, "shard.00000.mds.zstd", compress_zst(as_mds()))
    entry = {"format": "mds", "raw_data": {"basename": "shard.00000.mds"}}
    entry |= {"zip_data": {"basename": "shard.00000.mds.zstd"}}
    write(shards, "index.json", json.dumps({"version": 2, "shards": [entry]}).encode())
    assert list(text.read_documents([str(shards)])) == TEXTS


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("index.json", "{", r"index\.json line 1: not JSON"),
        ("index.json", '{"shards": ["a"]}', "got a folder, expected files"),
        ("index.json", '{"shards": [{"format": "mds"}]}', "shard 1 has no 'raw_data'"),
        ("index.json", '{"shards": [{"format": "mds", "raw_data": 1}]}', "got a whole number"),
        ("dataset_dict.json", "", "dataset_dict.json line 1: not JSON"),
        ("dataset_dict.json", "[]", "got a list, expected an object with 'splits'"),
        ("dataset_dict.json", '{"splits": []}', "has no splits"),
        ("state.json", '{"_data_files": [', r"state\.json line 1: not JSON"),
        ("state.json", '{"_data_files": [1]}', "expected an object with 'filename'"),
        ("state.json", "[]", "got a folder, expected files"),
    ],
)
def test_damaged_indices_of_folders_are_one_line(tmp_path, name, content, message):
    write(tmp_path, name, content.encode())
    with pytest.raises(UserError, match=message) as caught:
        find_sources([str(tmp_path)])
    assert "\n" not in str(caught.value)


def test_a_chosen_format_must_read_the_file(tmp_path):
    path = write(tmp_path, "a.txt", as_arrow("parquet"))
    assert list(text.read_documents([path], format="parquet")) == TEXTS
    with pytest.raises(UserError, match="is a Parquet file, expected text: --format parquet reads"):
        list(text.read_documents([path], format="jsonl"))
    path = write(tmp_path, "a.csv", as_csv())
    assert list(text.read_documents([path], format="text"))
    with pytest.raises(UserError, match="truncated or corrupt after 0 rows"):
        list(text.read_documents([path], format="parquet"))


def test_every_format_is_documented():
    docs = corpus_format.__file__.rpartition("bertjax/corpus")[0] + "docs/data.md"
    with open(docs, encoding="utf-8") as stream:
        table = stream.read()
    for name in corpus_format.all_formats():
        assert f"`{name}`" in table


@pytest.mark.parametrize("kind", ["parquet", "stream", "file"])
def test_memory_is_that_of_a_batch_and_not_of_a_file(tmp_path, kind):
    """Also for a Parquet file of a single row group."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    letters = np.random.default_rng(0).integers(97, 123, (40_000, 1000), np.uint8)
    table = pa.table({"text": [row.tobytes().decode() for row in letters]})
    path = str(tmp_path / "data")
    if kind == "parquet":
        parquet.write_table(table, path, row_group_size=1 << 20, use_dictionary=False)
    else:
        writer = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with writer(path, table.schema) as stream:
            stream.write_table(table, max_chunksize=500)
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    peak, count = 0, 0
    for document in text.read_source(Source(path)):
        count += len(document.text)
        peak = max(peak, pa.total_allocated_bytes() - before)
    peak += tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == letters.size
    assert 0 < peak < table.nbytes / 3
