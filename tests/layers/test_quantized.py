"""Matmuls with 8-bit operands: scales and rounding by hand, and how far they are from float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers import quantized
from bertjax.layers.dense import PRECISIONS, Dense, contract


def test_each_row_has_the_scale_of_its_largest_value():
    x = jnp.array([[254.0, -127.0, 3.1], [0.0, 0.0, 0.0], [-0.5, 0.25, 0.1]])
    rounded, scale = quantized.quantize(x, jnp.int8, axis=1)
    np.testing.assert_array_equal(rounded, [[127, -64, 2], [0, 0, 0], [-127, 64, 25]])
    np.testing.assert_allclose(scale[:, 0] * 127, [254.0, 1.0, 0.5])
    (by_column,), scale = quantized.quantize(x[:1], jnp.float8_e4m3fn, axis=0)
    np.testing.assert_array_equal(by_column.astype(jnp.float32), [448.0, -448.0, 448.0])
    np.testing.assert_allclose(scale, np.abs(x[:1]) / 448, rtol=1e-6)


def relative_error(got, expected):
    return float(np.linalg.norm(np.asarray(got, np.float32) - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize(
    ("kind", "bound", "gradient_bound"), [("int8", 0.011, 0.011), ("float8", 0.04, 0.065)]
)
def test_results_are_close_to_float32(kind, bound, gradient_bound, random):
    """8 bits of normal numbers lose 1%; float8 has 3 bits of mantissa, its gradient 2."""
    x, kernel, gradient = random(64, 129), random(129, 96), random(64, 96)
    scales = 10.0 ** np.arange(-4, 4).repeat(8)[:, None]  # of the rows, as of outlier tokens
    x, gradient = x * scales, gradient / scales
    y, pull_back = jax.vjp(
        lambda x, w: quantized.matmul(kind, "float32", "float32", x, w), x, kernel
    )
    of_x, of_kernel = pull_back(gradient)
    assert relative_error(y / scales, (x @ kernel) / scales) < bound
    assert relative_error(of_x * scales, (gradient @ kernel.T) * scales) < gradient_bound
    np.testing.assert_allclose(of_kernel, x.T @ gradient, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", ["int8", "float8"])
def test_a_linear_layer_has_8_bit_operands_where_its_precision_has(kind, random, randomized):
    dense, x = Dense((5,), ("embed", "mlp"), precision=PRECISIONS[kind]), random(2, 3, 7)
    params = randomized(dense, x)
    program = str(jax.make_jaxpr(jax.grad(lambda p, x: dense.apply(p, x).sum(), 1))(params, x))
    in_8_bits = {"int8": "i8[6,7]", "float8": "f8_e4m3fn[6,7]"}[kind]
    assert in_8_bits in program
    assert {"int8": "i8[6,5]", "float8": "f8_e5m2[6,5]"}[kind] in program
    logits = str(jax.make_jaxpr(lambda x: contract("bld,bvd->blv", x, x, PRECISIONS[kind]))(x))
    assert "8" not in logits
