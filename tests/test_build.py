"""Objects built from configs with default fields, and of models with other fields."""

import types

import flax.linen as nn
import pytest

from bertjax import build, catalog
from bertjax.config import FINE_TUNING, PRETRAINING, load_config, replace_fields, split_overrides
from bertjax.constraints import PositiveInt
from bertjax.errors import UserError
from bertjax.models import bert
from bertjax.runs import finetune_job
from bertjax.train.checkpoint.origin import PretrainedSource


class Model(nn.Module):
    """A model without layers, precision or unroll."""

    vocab_size: PositiveInt = 8


@pytest.fixture
def another_model(monkeypatch):
    """Add `models/another.py`, which is `Model`."""
    load, names = catalog.load, catalog.names

    def with_another(folder, name, part=None):
        return types.SimpleNamespace(Model=Model) if name == "another" else load(folder, name, part)

    monkeypatch.setattr(catalog, "load", with_another)
    monkeypatch.setattr(
        catalog,
        "names",
        lambda folder, part=None: [*names(folder, part), *["another"] * (folder == "models")],
    )


def pretraining(model: dict):
    config = load_config("configs/bert.py:tiny")
    with config.unlocked():
        config.model = model
    return config


def test_all_fields_of_a_model_may_have_their_defaults():
    config = pretraining({"name": "bert"})
    PRETRAINING.check(config, "bert")
    build.check(config)
    assert build.encoder(config.model) == bert.Model()
    assert build.precision(config.model) == "float32"
    assert build.positions(config.model) == 512
    assert build.tokenizer_fields(config)["vocab_size"] == 30522
    with pytest.raises(UserError, match="got sequences of 513 tokens, expected at most 512"):
        build.phases(replace_fields(config, {"data.phases": (), "data.max_seq_length": 513}))


def test_pretraining_requires_no_missing_field_of_the_model(another_model):
    config = pretraining({"name": "another"})
    PRETRAINING.check(config, "another")
    assert build.encoder(config.model) == Model()
    assert build.precision(config.model) == "float32"


def merged(model: dict, *overrides: str):
    words = [f"--config.{override}" for override in overrides]
    recipe = load_config("configs/glue.py:mrpc", split_overrides(words)[1], FINE_TUNING)
    build.check(recipe)
    return finetune_job.with_origin(recipe, PretrainedSource("runs/x", None, {"model": model}))


def test_model_preferences_without_a_field_of_the_model_are_ignored():
    config = merged({"name": "elmo", "hidden_dropout_prob": 0.5})
    assert config.model.to_dict() == {"name": "elmo", "hidden_dropout_prob": 0.1}
    assert "model_preferences" not in config
    build.check(config)
    config = merged({"name": "bert"}, "model.hidden_dropout_prob=none")
    assert config.model.to_dict() == {"name": "bert", "attention_probs_dropout_prob": 0.1}
    config = merged({"name": "bert"}, "model.hidden_dropout_prob=0.2", "model.remat=full")
    assert (config.model.hidden_dropout_prob, config.model.remat) == (0.2, "full")


def test_an_override_without_a_field_of_the_model_is_refused():
    with pytest.raises(UserError, match="but the model of runs/x has no such field"):
        merged({"name": "elmo"}, "model.attention_probs_dropout_prob=0.2")
    with pytest.raises(
        UserError, match=r"no field 'hiden_dropout_prob' in config.model: did you m"
    ):
        merged({"name": "elmo"}, "model.hiden_dropout_prob=0.2")


def test_pretraining_has_no_model_preferences():
    config = pretraining({"name": "bert"})
    with config.unlocked():
        config.model_preferences = {"hidden_dropout_prob": 0.1}
    with pytest.raises(UserError, match="no field 'model_preferences' in config"):
        build.check(config)
