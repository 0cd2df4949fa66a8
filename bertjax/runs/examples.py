"""The data of a pretraining run: its tokenizer, its splits, and the examples of its format.

The split is one of a corpus that exists or is made from raw text, of a mixture of corpora, or of
the data that an example format reads itself.
"""

import collections
import dataclasses
import pathlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ml_collections import ConfigDict

from bertjax import build, catalog
from bertjax.constraints import with_defaults
from bertjax.corpus.mixture import MixedCorpus, entries_of, open_mixture, with_temperature
from bertjax.corpus.reader import check_tokenizer, open_corpus, read_manifest
from bertjax.data.format import ExampleSource, ExampleSpec
from bertjax.data.sequence_template import SequenceTemplate
from bertjax.errors import UserError
from bertjax.interfaces import Tokenizer
from bertjax.io import copies
from bertjax.pretrainer import RandomRows
from bertjax.tokenizers.special_tokens import end_of_text
from bertjax.tokenizers.tokenizer import load as load_tokenizer
from bertjax.validation import config as validation_config

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


def check(config: ConfigDict) -> None:
    """Raises if an objective or an option does not fit the example format.

    Raises:
      UserError: naming the field.
    """
    data, sections = config.data, config.objectives
    if "pair_label" in batch_keys(config) and data.pair == "none":
        raise UserError(
            f"objectives {', '.join(sections)} require labelled pairs: got config.data.pair=none, "
            "expected next or order"
        )
    example_format = build.example_format(config)
    if entries_of(data) and (example_format.rows_continue or not example_format.reads_text):
        raise UserError(
            f"config.data.mixture is not supported with format {data.format}, whose rows are not "
            "independent examples of a corpus: leave it at (), or choose another format"
        )
    if example_format.packs_documents and not build.supports_packing(config.model):
        raise UserError(
            f"config.data.format={data.format} is not supported with model {config.model.name}, "
            "which does not separate packed documents or their positions: choose another format or "
            "model"
        )
    used = {"data.pair": data.pair != "none", "data.short_seq_prob": data.short_seq_prob}
    used |= {f"objectives.{n}.static": f.get("static", False) for n, f in sections.items()}
    for field, value in used.items():
        if value and field.rpartition(".")[2] not in example_format.options:
            raise UserError(
                f"config.{field} is not supported with format {data.format}, whose examples are "
                "not made of sentences: leave it at none or False, or choose another format"
            )


def batch_keys(config: ConfigDict) -> dict[str, RandomRows]:
    """Batch keys of all objectives besides those of the format; see `Objective.batch_keys`."""
    keys: dict[str, RandomRows] = {}
    for name, module in validation_config.objective_modules(config).items():
        keys |= module.batch_keys(with_defaults(module, config.objectives[name]))
    return keys


def reads_position_ids(model: Mapping[str, Any]) -> bool:
    """Whether the model adds embeddings of `position_ids`, which may be soft positions."""
    return getattr(catalog.load("models", model["name"]).Model, "reads_position_ids", False)


def max_chars_per_word(model: Mapping[str, Any]) -> int:
    """W, the number of characters per word that the model reads; 0 if it reads tokens."""
    module = catalog.load("models", model["name"]).Model
    reads_characters = getattr(module, "reads_characters", False)
    return build.model_values(model)["max_chars_per_word"] if reads_characters else 0


def examples(
    config: ConfigDict,
    split: Any,
    tokenizer: Tokenizer | None,
    phase: build.Phase,
    rows: int = 1,
    skipped: Mapping[str, int] = MappingProxyType({}),
) -> ExampleSource:
    """The examples of a split, with every key that the model and the objectives read.

    Args:
      config: Config of the run.
      split: Split of a corpus, a mixture of corpora, or images.
      tokenizer: Tokenizer of the run; None for images.
      phase: Has the length of an example and, for a training split, the weights of a mixture.
      rows: Rows of a global batch, for formats whose rows continue from step to step.
      skipped: Number of examples of each corpus of a mixture that earlier phases have used.
    """
    check(config)
    if not isinstance(split, MixedCorpus):
        return _examples_of_one(config, split, tokenizer, phase.max_seq_length, rows)
    from bertjax.data.mixture import JoinedExamples, MixtureExamples

    parts = {
        name: _examples_of_one(config, part, tokenizer, phase.max_seq_length, 1)
        for name, part in split.parts.items()
    }
    if split.held_out:
        return JoinedExamples(list(parts.values()))
    sizes = [part.num_tokens / split.num_tokens for part in split.parts.values()]
    temperature = config.data.mixture_temperature or 1.0
    return MixtureExamples(parts, with_temperature(phase.mixture or sizes, temperature), skipped)


def continued_phases(
    config: ConfigDict, phases: Sequence[build.Phase], make: Callable[..., ExampleSource]
) -> Iterator[tuple[build.Phase, ExampleSource, int]]:
    """Yields each phase with its examples and the position of its first row among them.

    Phases of one length use one sequence of examples, in which a phase continues where the one
    before it ended, as for a batch size that grows. Rows that continue from step to step start
    anew where their number changes.

    Args:
      config: Config of the run.
      phases: The phases of the run.
      make: (phase, examples used of each corpus of a mixture) -> examples of the training split.
    """
    rows_continue = build.example_format(config).rows_continue
    positions: Counter[tuple[int, int]] = Counter()
    used: dict[int, Counter[str]] = collections.defaultdict(Counter)
    for phase in phases:
        length, num_rows = phase.max_seq_length, phase.steps * phase.batch_size
        sequence = length, phase.batch_size if rows_continue else 0
        examples = make(phase, used[length])
        yield phase, examples, positions[sequence]
        if entries_of(config.data):
            # Weights may differ between phases, so that each corpus continues on its own.
            for name, counts in examples.usage(num_rows).items():
                used[length][name] += counts["examples"]
        else:
            positions[sequence] += num_rows


def _examples_of_one(
    config: ConfigDict, split: Any, tokenizer: Tokenizer | None, length: int, rows: int
) -> ExampleSource:
    spec = ExampleSpec(split, config.data, config.seed, length, rows)
    reads_words = "word_starts" in batch_keys(config)
    if tokenizer is not None:
        spec = dataclasses.replace(
            spec,
            specials=SequenceTemplate(
                tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, build.cls_last(config.model)
            ),
            separator=end_of_text(tokenizer),
            word_starts=tokenizer.word_starts if reads_words else None,
            resegment=not any(f.get("static", False) for f in config.objectives.values()),
        )
    made = build.example_format(config).examples(spec)
    width = max_chars_per_word(config.model)
    if not width:
        return made
    from bertjax.data import characters

    return characters.CharacterExamples(made, characters.vocabulary(tokenizer, width))
