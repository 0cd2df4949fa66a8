"""Train or extend a tokenizer, convert text to token ids, or ids to text."""

import contextlib
import functools
import hashlib
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from bertjax.commands import _flags
from bertjax.constraints import PositiveInt, PositiveShare, constraint_action
from bertjax.validation.unused_options import check_flags

if TYPE_CHECKING:
    import argparse

    from bertjax.interfaces import Tokenizer

GROUP = "Data"
COMMANDS = ("train", "extend", "encode", "decode")

_TRAIN = """\
examples:
  bertjax tokenizer train --input 'text/*.txt' --output vocab
  bertjax tokenizer train --input python-docs --kind bpe --vocab_size 8192 --output vocab
  bertjax tokenizer train --input 'wiki/*.gz' --kind unigram --vocab_size 32000 --cased \\
      --sample 0.1 --output vocab

kinds:
  wordpiece          WordPiece, as in BERT; lowercased unless --cased
  bpe                byte-level BPE, as in GPT-2 and RoBERTa; lossless
  unigram            SentencePiece unigram model, as in ALBERT, XLNet and T5
  sentencepiece_bpe  SentencePiece BPE
  words              the most frequent words, for models that read characters (ELMo)

Training is deterministic: the same text in the same order gives the same tokenizer. The folder also
has the files of Hugging Face's libraries (tokenizer.json with vocab.txt or vocab.json and
merges.txt; spiece.model). Next: bertjax prepare --tokenizer DIR, or bertjax tokenizer encode.
"""

_EXTEND = """\
examples:
  bertjax tokenizer extend --tokenizer bert-base-uncased --input 'domain/*.txt' \\
      --num_pieces 2000 --output vocab
  bertjax pretrain --config roberta:base --init bert-base-uncased --config.tokenizer.path=vocab ...

Words of the text are divided into the pieces of the tokenizer, and the most frequent pairs are
merged to new pieces, as if its training continued with this text. For WordPiece and byte-level BPE.
Existing ids do not change; new pieces follow them. If a model is pretrained further with the
extended tokenizer, the embedding of a new piece is initialised with the mean of its parts.
"""

_ENCODE = """\
examples:
  echo 'Hello, world' | bertjax tokenizer encode --tokenizer vocab
  {"ids": [7592, 1010, 2088], "pieces": ["hello", ",", "world"]}

  bertjax tokenizer encode --tokenizer vocab --input text.txt > ids.jsonl

Prints a JSON object for each line. Special tokens are neither added nor recognised: a literal
[MASK] in a line is ordinary text.
"""

_DECODE = """\
examples:
  echo '7592 1010 2088' | bertjax tokenizer decode --tokenizer vocab
  hello, world

  bertjax tokenizer decode --tokenizer vocab --input ids.jsonl

Reads JSON objects with "ids", JSON lists, or ids separated by spaces, one per line.
"""


_TOKENIZER = (
    "folder of `bertjax tokenizer train`, of a run or of a corpus; or released files such as "
    "vocab.txt, spiece.model, tokenizer.json"
)
_MAX_SHOWN = 8


def main(argv: list[str]) -> None:
    """Runs the selected command."""
    arguments = parser().parse_args(argv)
    arguments.run(arguments)


def _encode(arguments: "argparse.Namespace") -> None:
    from bertjax.tokenizers import lines

    _convert(arguments, lines.encode_lines)


def _decode(arguments: "argparse.Namespace") -> None:
    from bertjax.tokenizers import lines

    _convert(arguments, lines.decode_lines)


def _convert(arguments: "argparse.Namespace", convert: Callable) -> None:
    """Prints a line of output for each line of input, as soon as it arrives."""
    from bertjax.tokenizers import lines, tokenizer

    loaded = tokenizer.load(arguments.tokenizer, lowercase=arguments.lowercase)
    for texts in convert(loaded, lines.read_batches(arguments.input)):
        sys.stdout.buffer.writelines(text.encode() + b"\n" for text in texts)
        sys.stdout.buffer.flush()


def _train(arguments: "argparse.Namespace") -> None:
    """Trains a tokenizer, writes its folder and prints a summary."""
    _check(arguments)
    from bertjax.tokenizers import tokenizer

    with _input_progress() as progress:
        trained = tokenizer.train(
            progress.count(_texts(arguments)),
            kind=arguments.kind,
            vocab_size=arguments.vocab_size,
            lowercase=arguments.lowercase,
            strip_accents=arguments.strip_accents,
            normalization=arguments.normalization,
            character_coverage=arguments.character_coverage,
        )
    files = _save(trained, arguments.output)
    if trained.vocab_size < arguments.vocab_size:
        print(
            f"note: --vocab_size: got {arguments.vocab_size:,}, but this text has only "
            f"{trained.vocab_size:,} tokens; set vocab_size={trained.vocab_size} in models",
            file=sys.stderr,
        )
    print(f"tokenizer    {trained.kind}, {trained.vocab_size:,} tokens")
    print(f"trained on   {progress.documents:,} documents, {progress.characters:,} characters")
    print(f"fingerprint  {trained.fingerprint}")
    print(f"written to   {arguments.output}: {files}")


def _extend(arguments: "argparse.Namespace") -> None:
    """Extends a tokenizer, writes its folder and prints a summary."""
    _check(arguments)
    from bertjax.tokenizers import extension, tokenizer

    old = tokenizer.load(arguments.tokenizer)
    extension.check(old)
    with _input_progress() as progress:
        texts = progress.count(_texts(arguments))
        extended = extension.extend(old, texts, num_pieces=arguments.num_pieces)
    files = _save(extended.tokenizer, arguments.output)
    if len(extended.pieces) < arguments.num_pieces:
        print(
            f"note: --num_pieces: got {arguments.num_pieces:,}, but only {len(extended.pieces):,} "
            "pairs of pieces of this text are frequent enough",
            file=sys.stderr,
        )
    before, after = extended.pieces_per_word
    shown = ", ".join(extended.pieces[:_MAX_SHOWN])
    new = f"{len(extended.pieces):,} new ones: {shown}, ..." if extended.pieces else "no new one"
    print(f"tokenizer    {old.kind}, {extended.tokenizer.vocab_size:,} tokens, {new}")
    print(f"extended on  {progress.documents:,} documents, {progress.characters:,} characters")
    print(f"effect       {after:.3f} pieces per word instead of {before:.3f}")
    if extended.unknown_share:
        print(f"unknown      {extended.unknown_share:.2%} of the words, before and after")
    print(f"fingerprint  {extended.tokenizer.fingerprint}")
    print(f"written to   {arguments.output}: {files}")


def _save(tokenizer: "Tokenizer", output: str) -> str:
    """Writes the folder of a tokenizer and returns the names of its files."""
    from bertjax.io import copies
    from bertjax.tokenizers import folder as tokenizers_folder

    with copies.atomic_upload(output, tokenizers_folder.METADATA) as folder:
        tokenizer.save(str(folder))
        return ", ".join(sorted(path.name for path in folder.iterdir()))


def parser() -> _flags.Parser:
    """Returns the parser of the command line."""
    parser = _flags.Parser(
        "bertjax tokenizer",
        __doc__,
        renamed={"--decode": "bertjax tokenizer decode"},
    )
    commands = parser.add_commands()
    _add_train(commands)
    _add_extend(commands)
    for name, description, epilog, run in (
        ("encode", "Convert lines of text to token ids and pieces.", _ENCODE, _encode),
        ("decode", "Convert lines of token ids to text.", _DECODE, _decode),
    ):
        command = _flags.add_command(commands, name, description, epilog, run)
        command.add_argument("--tokenizer", required=True, metavar="DIR", help=_TOKENIZER)
        command.add_argument(
            "--input", metavar="FILE", help="file to read (default: standard input)"
        )
        _flags.add_case(
            command,
            "keep case, for a vocab.txt (default: inferred from its tokens)",
            "lowercase, for a vocab.txt",
        )
    return parser


def _add_train(commands) -> None:
    parser = _flags.add_command(
        commands,
        "train",
        "Train a tokenizer on text and write it to a folder.",
        _TRAIN,
        _train,
        renamed={"--out": "--output"},
    )
    add = parser.add_argument
    _flags.add_texts(parser, "files (also .gz .bz2 .xz .zst), python-docs, or tfds:NAME:SPLIT")
    add("--output", required=True, metavar="DIR", help="folder to create")
    add("--kind", default="wordpiece", metavar="NAME", help="kind of tokenizer, see below")
    add(
        "--vocab_size",
        action=constraint_action(PositiveInt),
        default=30_522,
        metavar="N",
        help="size of the vocabulary in tokens, special tokens included",
    )
    _flags.add_case(
        parser,
        "keep case (default: except for wordpiece)",
        "lowercase (default: for wordpiece)",
    )
    accents = parser.add_mutually_exclusive_group()
    accents.add_argument(
        "--strip_accents",
        dest="strip_accents",
        action="store_true",
        help="remove accents (default: for lowercased wordpiece)",
    )
    accents.add_argument(
        "--keep_accents",
        dest="strip_accents",
        action="store_false",
        help="keep accents (default for all other tokenizers)",
    )
    parser.set_defaults(strip_accents=None)
    add(
        "--normalization",
        metavar="FORM",
        help="Unicode normalization: none, nfc, nfd, nfkc or nfkd; for SentencePiece none or nfkc "
        "(default: that of the kind)",
    )
    add(
        "--character_coverage",
        action=constraint_action(PositiveShare),
        metavar="SHARE",
        help="fraction of the text that must be covered by the characters of the alphabet "
        "(default: 0.9999); not for bpe and words",
    )
    _add_selection(parser)


def _add_extend(commands) -> None:
    parser = _flags.add_command(
        commands,
        "extend",
        "Add the most frequent new pieces of a text to a tokenizer.",
        _EXTEND,
        _extend,
    )
    add = parser.add_argument
    add("--tokenizer", required=True, metavar="DIR", help=_TOKENIZER)
    _flags.add_texts(parser, "files (also .gz .bz2 .xz .zst), python-docs, or tfds:NAME:SPLIT")
    add("--output", required=True, metavar="DIR", help="folder to create")
    add(
        "--num_pieces",
        action=constraint_action(PositiveInt),
        default=1000,
        metavar="N",
        help="number of new pieces (default: 1000)",
    )
    _add_selection(parser)


def _add_selection(parser: "argparse.ArgumentParser") -> None:
    """Adds options that select documents."""
    add = parser.add_argument
    add(
        "--max_documents",
        action=constraint_action(PositiveInt),
        metavar="N",
        help="read the first N documents only (default: all)",
    )
    add(
        "--sample",
        action=constraint_action(PositiveShare),
        metavar="SHARE",
        help="read this fraction of the documents, selected by a hash of the text (default: all)",
    )
    _flags.add_reading(parser)


def _check(arguments: "argparse.Namespace") -> None:
    """Checks options and the output folder before training, which takes minutes."""
    check_flags([_flags.TFDS_DATA_DIR], vars(arguments), arguments.parser.get_default)
    from bertjax.corpus import sources
    from bertjax.io import storage
    from bertjax.tokenizers.folder import METADATA, check_target

    out = storage.to_path(arguments.output)
    if not (out / METADATA).is_file():
        check_target(out)
    if note := sources.describe_repeated(arguments.input):
        print(note, file=sys.stderr)


def _texts(arguments: "argparse.Namespace") -> Iterator[str]:
    from bertjax.corpus.text import read_documents

    texts = read_documents(
        arguments.input,
        format=arguments.format,
        errors=arguments.errors,
        tfds_data_dir=arguments.tfds_data_dir,
        text_field=arguments.text_field,
    )
    if arguments.sample is not None:
        texts = (text for text in texts if _hash_fraction(text) < arguments.sample)
    return itertools.islice(texts, arguments.max_documents)


def _hash_fraction(text: str) -> float:
    """Hashes a text to [0, 1): the sample is independent of order, files and machine."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


class _InputProgress:
    """Counts documents and characters and reports progress."""

    def __init__(self, show: Callable[[str], None], seconds_between: float) -> None:
        self.documents = self.characters = 0
        self._show = show
        self._seconds_between = seconds_between

    def count(self, texts: Iterable[str]) -> Iterator[str]:
        """Yields the texts and counts them."""
        next_time = time.monotonic() + self._seconds_between
        for text in texts:
            self.documents += 1
            self.characters += len(text)
            if time.monotonic() >= next_time:
                self._show(f"reading: {self._counts_text()}")
                next_time = time.monotonic() + self._seconds_between
            yield text
        self._show(f"training on {self._counts_text()}")

    def _counts_text(self) -> str:
        return f"{self.documents:,} documents, {self.characters / 1e6:,.1f} million characters"


@contextlib.contextmanager
def _input_progress() -> Iterator[_InputProgress]:
    if not sys.stderr.isatty():
        log = functools.partial(print, file=sys.stderr, flush=True)
        yield _InputProgress(log, seconds_between=10)
        return
    from rich.console import Console

    with Console(stderr=True).status("reading") as status:
        yield _InputProgress(status.update, seconds_between=0.1)
