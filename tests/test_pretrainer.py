"""The pretrainer: preparation in order, one encoder pass, weighted sum of losses."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.bert import Model
from bertjax.objectives import mlm, sentence_pair
from bertjax.pretrainer import Encoded, Encoder, Pretrainer


class CountingEncoder(nn.Module):
    """Returns ids as vectors, and counts its calls in a variable."""

    vocab_size: int = 7
    hidden_size: int = 1
    embedding_size: int = 1
    hidden_act: str = "gelu"
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    precision: str = "float32"

    @nn.compact
    def __call__(self, batch, *, train):
        calls = self.variable("counts", "calls", lambda: jnp.zeros((), jnp.int32))
        calls.value += 1
        return Encoded(batch["input_ids"][..., None].astype(jnp.float32))

    def attend(self, hidden):
        return hidden


class Adding(nn.Module):
    """Adds a number to all ids; the loss is the sum of the encoder's output times `factor`."""

    number: int = 0
    factor: float = 1.0
    weight: float = 1.0
    rewrites_input = False
    predicts_tokens = False
    metrics = ()

    def prepare(self, encoder, batch, *, train):
        return {**batch, "input_ids": self.factor_of(train) * batch["input_ids"] + self.number}

    def factor_of(self, train):
        return 2 if train else 1

    def loss(self, encoder, encoded, batch, *, train):
        total = self.factor * encoded.sequence.sum()
        return total, jnp.asarray(2.0), {"size": (total + 1, jnp.asarray(3.0))}

    def predict(self, encoder, encoded, batch):
        return encoded.sequence[:, 0, 0]


BATCH = {"input_ids": jnp.array([[1, 2], [3, 4]])}


def test_objectives_prepare_in_order_and_share_one_encoding():
    pretrainer = Pretrainer(
        CountingEncoder(), {"first": lambda: Adding(1), "second": lambda: Adding(10, 5.0)}
    )
    (losses, metrics), state = pretrainer.apply({}, BATCH, train=True, mutable=["counts"])
    assert state["counts"]["encoder"]["calls"] == 1
    # Each id becomes 2 (2 i + 1) + 10, of which the sum is 4 * 10 + 4 * 12.
    assert losses == {"first": (88.0, 2.0), "second": (440.0, 2.0)}
    assert list(losses) == ["first", "second"]
    assert metrics == {"first/size": (89.0, 3.0), "second/size": (441.0, 3.0)}
    (losses, _), _ = pretrainer.apply({}, BATCH, train=False, mutable=["counts"])
    assert losses["first"][0] == 10 + 4 * 11


def test_predictions_are_those_of_the_task():
    pretrainer = Pretrainer(CountingEncoder(), {"task": lambda: Adding(10)})
    got, _ = pretrainer.apply({}, BATCH, method="predict", mutable=["counts"])
    np.testing.assert_array_equal(got, [11, 13])


def test_loss_weights():
    pretrainer = Pretrainer(
        CountingEncoder(), {"a": lambda: Adding(weight=0.5), "b": lambda: Adding()}
    )
    assert pretrainer.loss_weights() == {"a": 0.5, "b": 1.0}


def test_parameters_are_under_the_encoder_and_each_objective():
    model = Model(17, 6, 2, 2, 5)
    pretrainer = Pretrainer(
        model,
        {
            "mlm": lambda: mlm.Objective(mask_id=4, special_ids=(0, 1), vocab_size=17),
            "sentence_pair": sentence_pair.Objective,
        },
    )
    batch = {
        "input_ids": jnp.zeros((2, 7), jnp.int32),
        "attention_mask": jnp.ones((2, 7), bool),
        "pair_label": jnp.zeros(2, jnp.int32),
        "example_key": jax.random.split(jax.random.key(0), 2),
    }
    shapes = nn.meta.unbox(
        jax.eval_shape(lambda: pretrainer.init(jax.random.key(0), batch, train=False))
    )["params"]
    alone = jax.eval_shape(lambda: model.init(jax.random.key(0), batch, train=False))
    assert shapes["encoder"] == nn.meta.unbox(alone)["params"]
    heads = {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape
        for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)
        if path[0].key != "encoder"
    }
    assert heads == {
        "mlm/bias": (17,),
        "mlm/transform/dense/bias": (6,),
        "mlm/transform/dense/kernel": (6, 6),
        "mlm/transform/norm/bias": (6,),
        "mlm/transform/norm/scale": (6,),
        "sentence_pair/classifier/dense/bias": (2,),
        "sentence_pair/classifier/dense/kernel": (6, 2),
    }


@pytest.mark.parametrize(("module", "is_one"), [(Model(), True), (mlm.Objective(4, (), 7), False)])
def test_the_contract_of_an_encoder(module, is_one):
    assert isinstance(module, Encoder) == is_one
