"""Hugging Face models of any age: prefixes, old names, duplicates, and refused folders."""

import json

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.huggingface import model as huggingface_model
from bertjax.huggingface.model import HFModel

BERT = {"model_type": "bert"}


def test_a_bare_encoder_gets_its_prefix():
    released = HFModel.of(BERT, {"pooler.dense.weight": np.zeros((2, 2), np.float32)})
    assert list(released.arrays) == ["bert.pooler.dense.weight"]
    assert released.parts == ["encoder", "encoder/pooler"]


def test_old_names_and_constants():
    arrays = {
        "bert.embeddings.LayerNorm.gamma": np.ones(3, np.float32),
        "bert.embeddings.LayerNorm.beta": np.zeros(3, np.float32),
        "bert.embeddings.position_ids": np.arange(4),
    }
    released = HFModel.of(BERT, arrays)
    assert sorted(released.arrays) == [
        "bert.embeddings.LayerNorm.bias",
        "bert.embeddings.LayerNorm.weight",
    ]
    assert released.dtype == "float32"


def test_duplicate_arrays():
    words = np.arange(6, dtype=np.float32).reshape(3, 2)
    arrays = {
        "bert.embeddings.word_embeddings.weight": words,
        "cls.predictions.decoder.weight": words.copy(),
        "cls.predictions.decoder.bias": np.zeros(3, np.float32),
    }
    released = HFModel.of(BERT, arrays)
    assert sorted(released.arrays) == [
        "bert.embeddings.word_embeddings.weight",
        "cls.predictions.bias",
    ]
    arrays["cls.predictions.decoder.weight"][0, 0] = 9
    with pytest.raises(UserError, match=r"decoder.weight differs from bert.embeddings.word_embed"):
        HFModel.of(BERT, arrays)


def test_a_single_dtype_is_kept_and_mixed_dtypes_become_float32():
    half = {"bert.a": np.zeros(1, np.float16), "bert.b": np.zeros(1, np.float16)}
    assert HFModel.of(BERT, half).dtype == "float16"
    assert HFModel.of(BERT, half | {"bert.b": np.zeros(1, np.float32)}).dtype == "float32"


@pytest.mark.parametrize("config", [{"model_type": "mamba"}, {}])
def test_other_architectures_are_refused(config, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        UserError, match=r"model_type .*: got \S+, expected one of .*bert, .*roberta"
    ):
        huggingface_model.read(tmp_path)


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"no folder .*bert-base: .*hf download NAME --local-dir"):
        huggingface_model.read(tmp_path / "bert-base")
    with pytest.raises(UserError, match=r"has no config.json"):
        huggingface_model.read(tmp_path)


def test_heads_without_parameters_are_always_present():
    arrays = {"transformer.h.0.attn.c_attn.weight": np.zeros((2, 6), np.float32)}
    assert HFModel.of({"model_type": "gpt2"}, arrays).parts == ["encoder", "causal_lm"]
