"""Matmuls in every named precision: values, types and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.layers.dense import PRECISIONS, Precision, contract, get_precision

# bfloat16 keeps 8 bits: a rounded operand is off by at most 2**-9 of itself.
TOLERANCE = {"float32": 1e-6, "bfloat16": 2e-2, "bfloat16_operands": 2e-2}
# 8 bits are for linear layers alone, in test_quantized.py.
TOLERANCE |= {"int8": 2e-2, "float8": 2e-2}
SUBSCRIPTS = [
    ("ni,io->no", (5, 7), (7, 3)),
    ("ni,io->no", (32, 128), (128, 192)),
    ("ni,io->no", (48, 192), (192, 16)),
    ("ne,ve->nv", (32, 16), (128, 16)),
    ("blhk,bmhk->bhlm", (2, 3, 5, 7), (2, 11, 5, 7)),
]


@pytest.mark.parametrize("name", PRECISIONS)
@pytest.mark.parametrize(("subscripts", "left", "right"), SUBSCRIPTS)
def test_value_and_gradients_are_those_of_einsum(name, subscripts, left, right, random):
    x, y = random(*left), random(*right)
    exact, pullback = jax.vjp(lambda x, y: jnp.einsum(subscripts, x, y), x, y)
    probe = random(*exact.shape)
    value, gradients = jax.vjp(lambda x, y: contract(subscripts, x, y, PRECISIONS[name]), x, y)
    assert value.dtype == PRECISIONS[name].activations
    got = (value, *gradients(probe.astype(value.dtype)))
    for mine, expected in zip(got, (exact, *pullback(probe)), strict=True):
        error = np.abs(mine.astype(jnp.float32) - expected).max()
        assert error <= TOLERANCE[name] * np.abs(expected).max()
    assert [gradient.dtype for gradient in got[1:]] == [jnp.float32, jnp.float32]


def test_mixed_precision_matmuls_round_only_their_operands(random):
    x, y, probe = random(5, 257), random(257, 3), random(5, 3)

    def rounded(values):
        return np.asarray(values.astype(jnp.bfloat16), np.float64)

    mixed = PRECISIONS["bfloat16_operands"]
    value, pullback = jax.vjp(lambda x, y: contract("ni,io->no", x, y, mixed), x, y)
    # float32 sums of exact products of bfloat16: far closer than a bfloat16 result could be.
    np.testing.assert_allclose(value, rounded(x) @ rounded(y), rtol=1e-5, atol=1e-5)
    gradient_x, gradient_y = pullback(probe)
    np.testing.assert_allclose(gradient_x, rounded(probe) @ rounded(y).T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradient_y, rounded(x).T @ rounded(probe), rtol=1e-5, atol=1e-5)


def test_all_matmuls_of_the_mixed_precision_have_bfloat16_operands(random):
    x, y = random(5, 7), random(7, 3)

    def loss(x, y):
        return jnp.square(contract("ni,io->no", x, y, PRECISIONS["bfloat16_operands"])).sum()

    products = [
        equation
        for equation in _equations(jax.make_jaxpr(jax.grad(loss, (0, 1)))(x, y).jaxpr)
        if equation.primitive.name == "dot_general"
    ]
    assert len(products) == 3
    for product in products:
        assert {operand.aval.dtype for operand in product.invars} == {jnp.dtype(jnp.bfloat16)}
        assert product.outvars[0].aval.dtype == jnp.float32


def _equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(inner):
                yield from _equations(getattr(inner, "jaxpr", inner))


def _is_jaxpr(value):
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


def test_a_precision_is_found_by_name():
    assert get_precision("bfloat16_operands") == Precision("bfloat16", "float32")
    with pytest.raises(UserError, match="no precision 'bflot16': did you mean 'bfloat16'"):
        get_precision("bflot16")
