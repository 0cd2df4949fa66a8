"""The data of a pretraining run: its tokenizer, and its training and held-out split.

The split is one of a corpus that exists or is made from raw text, of a mixture of corpora, or of
the data that an example format reads itself.
"""

import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ml_collections import ConfigDict

from bertjax import build
from bertjax.corpus.mixture import entries_of, open_mixture
from bertjax.corpus.reader import check_tokenizer, open_corpus, read_manifest
from bertjax.errors import UserError
from bertjax.interfaces import Tokenizer
from bertjax.io import copies
from bertjax.tokenizers.tokenizer import load as load_tokenizer

if TYPE_CHECKING:
    from bertjax.corpus.prepare import Progress


def read_data(
    config: ConfigDict, log: Callable[[str], None], progress: "Callable[[Progress], None] | None"
) -> tuple[Tokenizer | None, Any, Any]:
    """The tokenizer, None for images, and the training and held-out splits.

    Raises:
      UserError: there is no data, or it does not match the config.
    """
    example_format = build.example_format(config)
    if not example_format.reads_text:
        return None, *example_format.read(config.data, config.objectives)
    if entries_of(config.data):
        return _read_mixture(config)
    tokenizer, path = _tokenized_corpus(config, log, progress)
    corpus = open_corpus(path)
    check_tokenizer(corpus, tokenizer)
    splits = read_manifest(path)["splits"]
    return tokenizer, corpus, open_corpus(path, "validation") if "validation" in splits else None


def _read_mixture(config: ConfigDict) -> tuple[Tokenizer, Any, Any]:
    corpus, held_out = open_mixture(entries_of(config.data))
    first = next(iter(corpus.parts.values()))
    tokenizer = load_tokenizer(config.tokenizer.path or first.path / "tokenizer")
    check_tokenizer(first, tokenizer)
    build.check_vocabulary(config, tokenizer, build.extra_ids(config))
    return tokenizer, corpus, held_out


def _tokenized_corpus(
    config: ConfigDict, log: Callable[[str], None], progress: "Callable[[Progress], None] | None"
) -> tuple[Tokenizer, pathlib.Path]:
    """The run's tokenizer and the folder of its corpus, both made if they do not exist."""
    data = config.data
    if data.corpus:
        return _prepared_corpus(config)
    if not data.input:
        raise UserError(
            "no training text: set --config.data.corpus=DIR, a prepared corpus, or "
            "--config.data.input='(GLOB,)', raw text"
        )
    from bertjax.corpus import cache  # prepares raw text, which the other runs do not read

    path = cache.get_or_train_tokenizer(data, config.tokenizer, log)
    tokenizer = load_tokenizer(path)
    # Checked before the corpus is prepared, which may take hours.
    build.check_vocabulary(config, tokenizer, build.extra_ids(config))
    return tokenizer, cache.get_or_prepare_corpus(data, path, tokenizer.fingerprint, log, progress)


def _prepared_corpus(config: ConfigDict) -> tuple[Tokenizer, pathlib.Path]:
    """The tokenizer, by default that of the corpus, and the folder of a corpus that exists."""
    data = config.data
    read_manifest(data.corpus)
    folder = copies.local_copy(data.corpus)
    tokenizer = load_tokenizer(config.tokenizer.path or folder / "tokenizer")
    build.check_vocabulary(config, tokenizer, build.extra_ids(config))
    if data.get("text_field"):
        raise UserError(
            f"config.data.text_field={data.text_field!r} has no effect: config.data.corpus is "
            "prepared already; remove one of them"
        )
    return tokenizer, folder
