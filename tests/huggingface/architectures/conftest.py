"""Fixtures of GPT-BERT, of whose folders transformers has no class that writes them."""

import json

import numpy as np
import pytest
import tokenizers as library
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from bertjax.huggingface import exporting, importing
from bertjax.huggingface.model import write_arrays

TEXT = ["a name is bound to an object", "the value of a name, and of the 2 names"] * 4


@pytest.fixture(scope="session")
def gpt_bert_tokenizer() -> str:
    """A `tokenizer.json` with the components and special tokens of released ones."""
    tokenizer = library.Tokenizer(models.BPE(unk_token="<unk>", ignore_merges=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(" "), normalizers.NFKC(), normalizers.Replace("\n", " \n ")]
    )
    words = library.Regex(r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            pre_tokenizers.Split(library.Regex(".{1,24}"), "isolated"),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    specials = ["<unk>", "<s>", "</s>", "<pad>", "<mask>", *(f"<special_{n}>" for n in range(11))]
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer.to_str()


@pytest.fixture(scope="session")
def save_gpt_bert(gpt_bert_tokenizer):
    """Writes a folder as it is released: weights, config and tokenizer."""

    def save(folder, arrays, config):
        folder.mkdir(parents=True)
        write_arrays(folder, arrays)
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "tokenizer.json").write_text(gpt_bert_tokenizer)
        return folder

    return save


@pytest.fixture(scope="session")
def write_random_run():
    """Writes a run of a config with random parameters, which it returns."""

    def write(folder, config, tokenizer, fixed=()):
        shapes = importing.parameter_shapes(importing.pretrainer(config, tokenizer))
        random = np.random.default_rng(0)
        params = {
            name: (random.normal(size=shape) / 3 + name.endswith("scale")).astype(np.float32)
            for name, shape in sorted(shapes.items())
        } | dict(fixed)
        importing.write(importing.Import(config, tokenizer, params, ()), folder)
        return params

    return write


@pytest.fixture(scope="session")
def export_run():
    """Exports a run."""

    def export(run, target, **options):
        return exporting.write(exporting.find(str(run)), target, **options)

    return export
