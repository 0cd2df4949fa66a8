"""ModernBERT: sizes, padding and packing, names of its heads' parameters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import build
from bertjax.config import load_config
from bertjax.errors import UserError
from bertjax.models.modernbert import Model
from bertjax.objectives import mlm
from bertjax.pretrainer import Pretrainer
from bertjax.tasks.glue import head
from bertjax.train.checkpoint import trees

V, L = 40, 23
FIELDS = {
    "vocab_size": V,
    "hidden_size": 24,
    "num_hidden_layers": 6,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": L,
    "local_attention": 6,
    "initializer_range": 0.3,
}
MLM = functools.partial(mlm.Objective, mask_id=4, special_ids=(0, 1, 2, 3, 4), vocab_size=V)


@pytest.mark.parametrize(("size", "count"), [("base", 149_014_272), ("large", 394_781_696)])
def test_the_encoders_have_the_published_number_of_parameters(size, count):
    encoder = build.encoder(load_config(f"modernbert:{size}").model)
    batch = {"input_ids": jnp.zeros((1, 8), int), "attention_mask": jnp.ones((1, 8), bool)}
    shapes = jax.eval_shape(lambda: encoder.init(jax.random.key(0), batch, train=False))
    assert trees.num_parameters(shapes) == count


@pytest.fixture(scope="module")
def encode():
    """Encodes a batch, with random parameters."""
    module = Model(**FIELDS, output_hidden_states=True)
    batch = {"input_ids": jnp.zeros((1, L), int), "attention_mask": jnp.ones((1, L), bool)}
    params = jax.jit(lambda: module.init(jax.random.key(3), batch, train=False))()
    return jax.jit(lambda batch: module.apply(params, batch, train=False))


@pytest.mark.slow
def test_packed_documents_are_encoded_as_alone(encode):
    """Rotary positions are relative, so that the second document need not start at 0."""
    random = np.random.default_rng(0)
    lengths = (9, 11)
    ids = [random.integers(5, V, length) for length in lengths]
    padding = L - sum(lengths)
    packed = {
        "input_ids": np.concatenate([*ids, np.zeros(padding, int)])[None],
        "attention_mask": (np.arange(L) < sum(lengths))[None],
        "pack_ids": np.repeat([1, 2, 0], [*lengths, padding])[None],
    }
    both = encode({name: jnp.asarray(array) for name, array in packed.items()})
    rows = np.zeros((2, L), int)
    for row, found in zip(rows, ids, strict=True):
        row[: len(found)] = found
    mask = np.arange(L) < np.array(lengths)[:, None]
    alone = encode({"input_ids": jnp.asarray(rows), "attention_mask": jnp.asarray(mask)})
    for got, expected in zip(
        (both.sequence, *both.hidden_states), (alone.sequence, *alone.hidden_states), strict=True
    ):
        np.testing.assert_allclose(got[0, :9], expected[0, :9], atol=2e-5)
        np.testing.assert_allclose(got[0, 9:20], expected[1, :11], atol=2e-5)
    assert len(both.hidden_states) == 7


def test_heads_have_no_biases_but_in_their_last_layer():
    pretrainer = Pretrainer(
        Model(**FIELDS),
        {"mlm": MLM, "glue": functools.partial(head.Task, dataset="cola")},
    )
    batch = {
        "input_ids": jnp.full((1, L), 7),
        "attention_mask": jnp.ones((1, L), bool),
        "labels": jnp.zeros(1),
        "example_key": jax.random.split(jax.random.key(0), 1),
    }
    shapes = jax.eval_shape(lambda: pretrainer.init(jax.random.key(0), batch, train=False))
    names = trees.flatten_names(shapes["params"])
    heads = {name.removesuffix("/value") for name in names if not name.startswith("encoder")}
    assert heads == {
        "mlm/transform/dense/kernel",
        "mlm/transform/norm/scale",
        "mlm/bias",
        "glue/pooler/dense/kernel",
        "glue/pooler/norm/scale",
        "glue/classifier/dense/kernel",
        "glue/classifier/dense/bias",
    }
    assert not [name for name in names if name.startswith("encoder") and "bias" in name]


def test_a_sequence_that_is_too_long(encode):
    batch = {"input_ids": jnp.zeros((1, 24), int), "attention_mask": jnp.ones((1, 24), bool)}
    with pytest.raises(UserError, match="24 tokens exceeds max_position_embeddings=23"):
        encode(batch)
