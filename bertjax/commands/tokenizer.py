"""Train a tokenizer on text and write it to a folder."""

import argparse
import contextlib
import functools
import hashlib
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator

from bertjax.commands.prepare import TEXT_FIELD_HELP, TFDS_DATA_DIR
from bertjax.constraints import PositiveInt, PositiveShare, checked
from bertjax.validation.unused_options import check_flags

EPILOG = """\
examples:
  bertjax tokenizer --input 'text/*.txt' --out vocab
  bertjax tokenizer --input python-docs --kind bpe --vocab_size 8192 --out vocab
  bertjax tokenizer --input 'wiki/*.gz' --kind unigram --vocab_size 32000 --cased --sample 0.1 \\
      --out vocab

kinds:
  wordpiece          BERT's: words, then pieces of words; lowercased unless --cased
  bpe                GPT-2's and RoBERTa's byte-level BPE, which spells any text
  unigram            SentencePiece's unigram model, as in ALBERT, XLNet and T5
  sentencepiece_bpe  SentencePiece's BPE
  words              the most frequent words, for models that read characters (ELMo)

The same text in the same order gives the same tokenizer at every run. The folder also holds the
files that Hugging Face's libraries read (tokenizer.json with vocab.txt or vocab.json and
merges.txt; spiece.model). Next: bertjax prepare --tokenizer DIR, or bertjax tokenize to try it.
"""


def main(argv: list[str]) -> None:
    """Reads the input, learns the tokenizer, writes the folder and prints what was made."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    check_flags([TFDS_DATA_DIR], vars(arguments), parser.get_default)
    _check(arguments)
    from bertjax.corpus import sources
    from bertjax.io import copies
    from bertjax.tokenizers import folder as tokenizers_folder
    from bertjax.tokenizers import tokenizer

    if note := sources.repeated(arguments.input):
        print(note, file=sys.stderr)
    with _reading() as reading:
        learned = tokenizer.train(
            reading.count(_texts(arguments)),
            kind=arguments.kind,
            vocab_size=arguments.vocab_size,
            lowercase=arguments.lowercase,
            strip_accents=arguments.strip_accents,
            normalization=arguments.normalization,
            character_coverage=arguments.character_coverage,
        )
    with copies.atomic_upload(arguments.out, tokenizers_folder.METADATA) as folder:
        learned.save(str(folder))
        files = ", ".join(sorted(path.name for path in folder.iterdir()))
    if learned.vocab_size < arguments.vocab_size:
        print(
            f"note: {arguments.vocab_size:,} pieces were asked, but this text has no more than "
            f"{learned.vocab_size:,}; models over it need vocab_size={learned.vocab_size}",
            file=sys.stderr,
        )
    print(f"tokenizer    {learned.kind}, {learned.vocab_size:,} pieces")
    print(f"learned from {reading.documents:,} documents, {reading.characters:,} characters")
    print(f"fingerprint  {learned.fingerprint}")
    print(f"written to   {arguments.out}: {files}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bertjax tokenizer",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--input",
        nargs="+",
        required=True,
        metavar="GLOB",
        help="files (also .gz .bz2 .xz .zst), python-docs, or tfds:NAME:SPLIT",
    )
    add("--out", required=True, metavar="DIR", help="a new folder")
    add("--kind", default="wordpiece", help="see below (default: wordpiece)")
    add(
        "--vocab_size",
        action=checked(PositiveInt),
        default=30_522,
        metavar="N",
        help="pieces (default: 30522)",
    )
    case = parser.add_mutually_exclusive_group()
    case.add_argument("--cased", dest="lowercase", action="store_false", help="keep capitals")
    case.add_argument("--uncased", dest="lowercase", action="store_true", help="lowercase")
    accents = parser.add_mutually_exclusive_group()
    accents.add_argument(
        "--strip_accents",
        dest="strip_accents",
        action="store_true",
        help="drop accents (default: with lowercased wordpiece)",
    )
    accents.add_argument(
        "--keep_accents", dest="strip_accents", action="store_false", help="keep accents"
    )
    add(
        "--normalization",
        metavar="FORM",
        help="none, nfc, nfd, nfkc or nfkd; SentencePiece: none or nfkc, its default",
    )
    add(
        "--character_coverage",
        action=checked(PositiveShare),
        metavar="SHARE",
        help="share of the text whose characters get pieces (default: 0.9999); not for bpe, words",
    )
    add(
        "--max_documents",
        action=checked(PositiveInt),
        metavar="N",
        help="learn from the first N documents only",
    )
    add(
        "--sample",
        action=checked(PositiveShare),
        metavar="SHARE",
        help="learn from this share of the documents, chosen by their content",
    )
    add("--format", default="auto", help="how files are laid out (default: auto, looks at each)")
    add("--text_field", default="", metavar="NAME", help=TEXT_FIELD_HELP)
    add("--errors", default="strict", choices=["strict", "replace"], help="for what is not UTF-8")
    add("--tfds_data_dir", metavar="DIR", help="where datasets of tfds: lie prepared")
    parser.set_defaults(lowercase=None, strip_accents=None)
    return parser


def _check(arguments: argparse.Namespace) -> None:
    """Refuses early what would be refused after minutes of learning."""
    from bertjax.io import storage
    from bertjax.tokenizers.folder import METADATA, check_target

    out = storage.to_path(arguments.out)
    if not (out / METADATA).is_file():
        check_target(out)


def _texts(arguments: argparse.Namespace) -> Iterator[str]:
    from bertjax.corpus.text import documents

    texts = documents(
        arguments.input,
        format=arguments.format,
        errors=arguments.errors,
        tfds_data_dir=arguments.tfds_data_dir,
        text_field=arguments.text_field,
    )
    if arguments.sample is not None:
        texts = (text for text in texts if _lot(text) < arguments.sample)
    return itertools.islice(texts, arguments.max_documents)


def _lot(text: str) -> float:
    """A number in [0, 1) that depends on the text alone, so that samples are the same anywhere."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


class _Reading:
    """Counts what is read and says how far it is."""

    def __init__(self, show: Callable[[str], None], seconds_between: float) -> None:
        self.documents = self.characters = 0
        self._show = show
        self._seconds_between = seconds_between

    def count(self, texts: Iterable[str]) -> Iterator[str]:
        """Passes the texts on."""
        next_time = time.monotonic() + self._seconds_between
        for text in texts:
            self.documents += 1
            self.characters += len(text)
            if time.monotonic() >= next_time:
                self._show(f"reading: {self._so_far()}")
                next_time = time.monotonic() + self._seconds_between
            yield text
        self._show(f"learning pieces from {self._so_far()}")

    def _so_far(self) -> str:
        return f"{self.documents:,} documents, {self.characters / 1e6:,.1f} million characters"


@contextlib.contextmanager
def _reading() -> Iterator[_Reading]:
    if not sys.stderr.isatty():
        yield _Reading(functools.partial(print, file=sys.stderr, flush=True), seconds_between=10)
        return
    from rich.console import Console

    with Console(stderr=True).status("reading") as status:
        yield _Reading(status.update, seconds_between=0.1)
