"""Detect files that are not plain text, and explain how to convert them.

The format is detected from the first bytes, decompressed, or from the name. Tables whose name has
no ending such as .csv are detected only by patterns that prose cannot have: reading every text file
as text is more important than refusing every table.
"""

import csv
import dataclasses
import os
import re
import shlex

HEAD_BYTES = 1 << 16
"""Number of decompressed bytes at the start of a file that the detection uses."""

COMPRESSIONS = {
    ".gz": "zcat",
    ".bz2": "bzcat",
    ".xz": "xzcat",
    ".zst": "zstdcat",
    ".zstd": "zstdcat",
}
"""Name endings of compressed files and the program that decompresses each."""

_MIN_TABLE_ROWS = 10


@dataclasses.dataclass(frozen=True)
class FileKind:
    """A file format.

    Attributes:
      name: The format's name in error messages.
      remedy: A command or a sentence that explains how to get plain text. `{read}` stands for the
        start of a command that reads the file, `{from_file}` for its redirection, `{path}` for the
        file, `{stem}` for its name without endings and `{ending}` for that of a table, else
        .txt; `{{` is a brace.
      endings: Name endings, in lower case.
      magic: A pattern of the first bytes.
      is_binary: Whether such a file is never text, even if the user chose a text format. Its magic
        bytes count only if no text can start with them.
      is_table: Whether it is text with fields in each line, which some readers accept.
    """

    name: str
    remedy: str
    endings: tuple[str, ...] = ()
    magic: re.Pattern[bytes] | None = None
    is_binary: bool = False
    is_table: bool = False


def _starts(pattern: bytes) -> re.Pattern[bytes]:
    return re.compile(pattern, re.DOTALL)


def _arrow(module: str, table: str) -> str:
    script = (
        f"import json, sys, {module} as pa; [print(json.dumps(dict(text=text))) for text in "
        f"{table}['COLUMN'].to_pylist()]"
    )
    return f'{{read}}python -c "{script}"{{from_file}} > {{stem}}.converted.jsonl'


_JSON_VALUES = (
    '{read}python -c "import json, sys; data = json.load(sys.stdin); [print(json.dumps(item)) for '
    'item in (data if isinstance(data, list) else [data])]"{from_file} > {stem}.converted.jsonl'
)
_JSON_TEXTS = (
    "{read}python -c \"import json, sys; [print(*json.loads(line)['text'].split()) for line in "
    'sys.stdin]"{from_file} > {stem}.converted.txt'
)
_ONE_PER_LINE = ", which has one text per line (prepare: --format lines)"
_CSV = (
    "{read}python -c \"import csv, sys; [print(*row['COLUMN'].split()) for row in "
    'csv.DictReader(sys.stdin)]"{from_file} > {stem}.converted.txt' + _ONE_PER_LINE
)
_ICONV = "{read}iconv -f UTF-{bits} -t UTF-8{from_file} > {stem}.converted{ending}"
_PANDOC = "{read}pandoc -f {format} -t plain{from_file} > {stem}.converted.txt"
_NO_TEXT = "remove it from the inputs, for it contains no text"

CSV = FileKind("a CSV table", _CSV, (".csv",), is_table=True)
TSV = FileKind(
    "a table with tabs (TSV)",
    "{read}cut -f COLUMN_NUMBER{from_file} > {stem}.converted.txt" + _ONE_PER_LINE,
    (".tsv", ".tab"),
    is_table=True,
)
JSON_ARRAY = FileKind("one JSON value over many lines", _JSON_VALUES)
JSON_LINES = FileKind(
    "a file of JSON lines", _JSON_TEXTS, (".jsonl", ".ndjson", ".json"), is_table=True
)
NUL_BYTES = FileKind(
    "binary data or UTF-16 (it has NUL bytes)",
    "remove it from the inputs, or convert it: " + _ICONV.replace("{bits}", "16"),
)
PARQUET = FileKind(
    "a Parquet file",
    # read_table starts threads that may outlive the interpreter, which then aborts.
    _arrow("pyarrow.parquet", "pa.ParquetFile(sys.stdin.buffer).read(use_threads=False)"),
    (".parquet",),
    _starts(rb"PAR[1E]"),
    True,
)
FEATHER = FileKind(
    "an Arrow IPC (Feather) file",
    _arrow("pyarrow", "pa.ipc.open_file(sys.stdin.buffer.read()).read_all()"),
    (".feather",),
    _starts(b"ARROW1|FEA1"),
    True,
)
ARROW_STREAM = FileKind(
    "an Arrow IPC stream",
    _arrow("pyarrow", "pa.ipc.open_stream(sys.stdin.buffer).read_all()"),
    (".arrow",),
    _starts(b"\xff\xff\xff\xff...\0"),
    True,
)
WARC = FileKind(
    "a WARC archive",
    'extract the text of its pages into JSON lines with a string "text", for example with '
    "warcio and trafilatura",
    (".warc", ".wet", ".wat"),
    _starts(rb"WARC/\d"),
)
MDS = FileKind("an MDS shard", "convert it to JSON lines", (".mds",), is_binary=True)

KINDS = (
    FileKind(
        "UTF-32 text",
        _ICONV.replace("{bits}", "32"),
        (),
        _starts(b"\xff\xfe\0\0|\0\0\xfe\xff"),
        True,
    ),
    FileKind(
        "UTF-16 text", _ICONV.replace("{bits}", "16"), (), _starts(b"\xff\xfe|\xfe\xff"), True
    ),
    PARQUET,
    FEATHER,
    ARROW_STREAM,
    WARC,
    MDS,
    FileKind(
        "a PDF file", "pdftotext {path} {stem}.converted.txt", (".pdf",), _starts(rb"%PDF-\d")
    ),
    FileKind("a ZIP archive", "unzip {path}", (".zip",), _starts(b"PK\x03\x04|PK\x05\x06"), True),
    FileKind(
        "an Excel workbook",
        "save a column of its sheet as text" + _ONE_PER_LINE,
        (".xlsx", ".xlsm", ".xls"),
        _starts(b"PK\x03\x04"),
        True,
    ),
    *(
        FileKind(
            name,
            _PANDOC.replace("{format}", ending[1:]),
            (ending,),
            _starts(b"PK\x03\x04"),
            True,
        )
        for name, ending in (
            ("a Word document", ".docx"),
            ("an OpenDocument text", ".odt"),
            ("an EPUB book", ".epub"),
            ("a PowerPoint presentation", ".pptx"),
        )
    ),
    FileKind("NumPy arrays", _NO_TEXT, (".npy", ".npz"), _starts(b"\x93NUMPY|PK\x03\x04"), True),
    FileKind("a PyTorch file", _NO_TEXT, (".pt", ".pth", ".ckpt"), _starts(b"PK\x03\x04"), True),
    FileKind(
        "a Microsoft Office document",
        "save it as plain text in UTF-8",
        (),
        _starts(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"),
        True,
    ),
    FileKind(
        "an RTF document", _PANDOC.replace("{format}", "rtf"), (".rtf",), _starts(rb"\s*\{\\rtf\d")
    ),
    FileKind(
        "an HTML page",
        _PANDOC.replace("{format}", "html"),
        (".html", ".htm", ".xhtml"),
        _starts(rb"(?i)\s*(<\?xml[^>]*>\s*)?(<!--.{0,2000}?-->\s*)*<(!doctype\s+html|html[\s>])"),
    ),
    FileKind(
        "an XML document",
        "extract its text (for a dump of Wikipedia: WikiExtractor)",
        (".xml",),
        _starts(rb"\s*<(\?xml\s|mediawiki[\s>])"),
    ),
    FileKind(
        "a SQLite database",
        "sqlite3 {path} \"SELECT json_object('text', COLUMN) FROM TABLE\" > {stem}.converted.jsonl",
        (".sqlite", ".sqlite3"),
        _starts(b"SQLite format 3\0"),
        True,
    ),
    FileKind(
        "a table in the columns of CoNLL",
        '{read}awk \'/^-DOCSTART-/{{print ""; next}} NF{{printf "%s ", $1; next}} {{print ""}}\''
        "{from_file} > {stem}.converted.txt",
        (".conll", ".conllu"),
        _starts(rb"-DOCSTART-\s"),
        is_table=True,
    ),
    FileKind("an HDF5 file", _NO_TEXT, (".h5", ".hdf5"), _starts(b"\x89HDF\r\n\x1a\n"), True),
    FileKind("a pickle", _NO_TEXT, (".pkl", ".pickle"), _starts(rb"\x80[\x02-\x05]"), True),
    FileKind("a safetensors file", _NO_TEXT, (".safetensors",), _starts(rb".{7}\0\{\s*\""), True),
    FileKind("an Avro file", "convert it to JSON lines", (".avro",), _starts(b"Obj\x01"), True),
    FileKind("an ORC file", "convert it to JSON lines", (".orc",), _starts(b"ORC"), True),
    FileKind(
        "a file of records (ArrayRecord or TFRecord)",
        "give the dataset as tfds:NAME:SPLIT, or a prepared corpus with its own option",
        (".array_record", ".arrayrecord", ".tfrecord", ".tfrecords"),
    ),
    FileKind("a tar archive", "tar -xf {path}", (".tar", ".tgz"), _starts(b".{257}ustar"), True),
    FileKind("a 7z archive", "7z x {path}", (".7z",), _starts(b"7z\xbc\xaf\x27\x1c"), True),
    FileKind("a RAR archive", "unrar x {path}", (".rar",), _starts(b"Rar!\x1a\x07"), True),
    FileKind(
        "a file that is compressed twice",
        "decompress it once",
        (),
        _starts(rb"\x1f\x8b\x08|BZh[1-9]1AY|\xfd7zXZ\x00|\x28\xb5\x2f\xfd"),
        True,
    ),
    FileKind(
        "a compressed file of a format that is not read",
        "decompress it, or compress it as .gz, .bz2, .xz or .zst",
        (".lz4", ".lzma", ".z", ".br", ".sz", ".lzo"),
        _starts(b"\x04\x22\x4d\x18|\x1f\x9d|\xff\x06\0\0sNaPpY"),
        True,
    ),
    FileKind(
        "an image",
        _NO_TEXT,
        (".png", ".jpg", ".jpeg", ".gif", ".webp", ".tif", ".tiff", ".bmp"),
        _starts(b"\x89PNG|\xff\xd8\xff|GIF8[79]a|RIFF....WEBP|II\\*\0|MM\0\\*"),
        True,
    ),
    FileKind(
        "sound or video",
        _NO_TEXT,
        (".mp3", ".wav", ".flac", ".ogg", ".mp4", ".mkv", ".webm"),
        _starts(b"ID3|RIFF....WAVE|fLaC|OggS|....ftyp|\x1a\x45\xdf\xa3"),
        True,
    ),
    FileKind("a program", _NO_TEXT, (".so", ".exe", ".dll", ".pyc"), _starts(b"\x7fELF"), True),
    CSV,
    TSV,
    JSON_LINES,
)
"""All detected formats. If several match, the one whose name ending matches too is chosen, else the
first."""


def split_name(path: str) -> tuple[str, str]:
    """Split off the ending of a compressed file: (name, ending in lower case or "")."""
    name, ending = os.path.splitext(path)
    return (name, ending.lower()) if ending.lower() in COMPRESSIONS else (path, "")


def detect_by_content(path: str, head: bytes) -> FileKind | None:
    """Detect a format by magic bytes; None for none.

    Magic bytes of a binary format that are readable text, such as PAR1, count only if control
    characters follow.
    """
    matching = []
    for kind in KINDS:
        match = kind.magic.match(head) if kind.magic else None
        if match and (not kind.is_binary or _is_binary(match[0]) or _CONTROL.search(head)):
            matching.append(kind)
    return next((kind for kind in matching if _has_ending(path, kind)), next(iter(matching), None))


def detect_by_name(path: str) -> FileKind | None:
    """Detect a format by name ending; None for none."""
    return next((kind for kind in KINDS if _has_ending(path, kind)), None)


_CONTROL = re.compile(rb"[\x00-\x07\x0e-\x1a\x1c-\x1f]")


def _is_binary(magic: bytes) -> bool:
    return _CONTROL.search(magic) is not None or not magic.isascii()


def detect_table(head: bytes) -> FileKind | None:
    """Detect CSV or TSV if the first lines of a file cannot be prose; else return None.

    TSV: at least 10 lines, none blank, all with the same number of tabs, and text before the first.
    CSV: at least 10 rows, none blank, all with the same number of fields, no field that starts with
    a space (prose has one after a comma), and a header of distinct names.
    """
    lines = head.decode(errors="replace").removesuffix("\n").split("\n")
    if len(head) >= HEAD_BYTES:
        lines = lines[:-1]
    if len(lines) < _MIN_TABLE_ROWS or not all(map(str.strip, lines)):
        return None
    if len({line.count("\t") for line in lines}) == 1 and all(
        line.partition("\t")[0].strip() and "\t" in line for line in lines
    ):
        return TSV
    return CSV if _is_csv(lines) else None


def _is_csv(lines: list[str]) -> bool:
    try:
        rows = [next(csv.reader([line], strict=True)) for line in lines]
    except (csv.Error, StopIteration):
        return False
    header = rows[0]
    return (
        len(header) > 1
        and len(set(header)) == len(header)
        and all(re.fullmatch(r"[^\W\d][\w .:/-]{0,39}", name) for name in header)
        and all(len(row) == len(header) for row in rows)
        and not any(field.startswith(" ") for row in rows for field in row)
    )


def remedy(kind: FileKind, path: str) -> str:
    """Explain how to convert a file to plain text: a command for this file, or a sentence."""
    name, compression = split_name(path)
    stem, ending = os.path.splitext(os.path.basename(name))
    by_name = detect_by_name(path)
    quoted = shlex.quote(path)
    return kind.remedy.format(
        read=f"{COMPRESSIONS[compression]} {quoted} | " if compression else "",
        from_file="" if compression else f" < {quoted}",
        path=quoted,
        stem=shlex.quote(stem),
        ending=shlex.quote(ending) if by_name and by_name.is_table else ".txt",
    )


def _has_ending(path: str, kind: FileKind) -> bool:
    return split_name(path)[0].lower().endswith(kind.endings or ("\0",))
