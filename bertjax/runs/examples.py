"""Make the examples of a run from its corpus: tokens, characters of words, or images."""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from bertjax import build, catalog
from bertjax.data import characters, images, packed, source_targets, streams
from bertjax.data import examples as whole
from bertjax.data.collate import Specials
from bertjax.data.pipeline import AnyExamples
from bertjax.errors import UserError
from bertjax.interfaces import Tokenizer
from bertjax.tokenizers.special_tokens import end_of_text


def check(config: ConfigDict) -> None:
    """Refuses objectives and options of the data that its format does not have.

    Raises:
      UserError: naming the field.
    """
    data, sections = config.data, config.objectives
    if "sentence_pair" in sections and data.pair == "none":
        raise UserError(
            "objective sentence_pair needs labelled pairs: set config.data.pair to next or order"
        )
    if data.format not in whole.FORMATS:
        _check_no_sentences(data, sections.mlm if "mlm" in sections else {})


def max_chars_per_word(model: Mapping[str, Any]) -> int:
    """How many characters of a word the model of `config.model` reads; 0 if it reads none."""
    module = catalog.load("models", model["name"]).Model
    return model["max_chars_per_word"] if getattr(module, "reads_characters", False) else 0


def examples(
    config: ConfigDict, split: Any, tokenizer: Tokenizer | None, length: int, rows: int = 1
) -> AnyExamples:
    """The examples of a split, with all that the model reads.

    Args:
      config: Of the run.
      split: A corpus, or images.
      tokenizer: Of the run; none for images.
      length: Tokens of an example.
      rows: Rows that continue from step to step, where the format has such.
    """
    if tokenizer is None:
        return images.ImageExamples(split, config.seed)
    made = _of_tokens(config, split, tokenizer, length, rows)
    width = max_chars_per_word(config.model)
    return (
        characters.CharacterExamples(made, characters.vocabulary(tokenizer, width))
        if width
        else made
    )


def _of_tokens(
    config: ConfigDict, corpus: Any, tokenizer: Tokenizer, length: int, batch_size: int = 1
) -> AnyExamples:
    """The examples of a corpus, in the format that the config asks for."""
    data = config.data
    mlm = config.objectives.mlm if "mlm" in config.objectives else {}
    word_starts = tokenizer.word_starts if build.needs_words(config) else None
    specials = Specials(
        tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, build.cls_last(config.model)
    )
    check(config)
    if data.format in packed.FORMATS:
        return packed.TokenWindows(
            corpus,
            format=data.format,
            max_seq_length=length,
            seed=config.seed,
            separator=end_of_text(tokenizer),
            pad_id=tokenizer.pad_id,
        )
    if data.format in source_targets.FORMATS:
        return source_targets.SourceTargets(
            corpus, specials, max_seq_length=length, seed=config.seed
        )
    if data.format in streams.FORMATS:
        return streams.Streams(
            corpus,
            specials,
            format=data.format,
            max_seq_length=length,
            batch_size=batch_size,
            seed=config.seed,
            word_starts=word_starts,
        )
    return whole.Examples(
        corpus,
        format=data.format,
        pair=data.pair,
        max_seq_length=length,
        short_seq_prob=data.short_seq_prob,
        seed=config.seed,
        cls_id=tokenizer.cls_id,
        sep_id=tokenizer.sep_id,
        pad_id=tokenizer.pad_id,
        word_starts=word_starts,
        resegment=not mlm.get("static", False),
        cls_last=specials.cls_last,
    )


def _check_no_sentences(data: ConfigDict, mlm: Mapping[str, Any]) -> None:
    """Refuses what the formats of `data/examples.py` know and others do not."""
    unknown = {"data.pair": data.pair != "none", "data.short_seq_prob": data.short_seq_prob}
    unknown["objectives.mlm.static"] = mlm.get("static", False)
    for field, asked in unknown.items():
        if asked:
            raise UserError(
                f"config.{field} does not go with format {data.format}, whose examples are not "
                "made of sentences: leave it at none or False, or choose another format"
            )
