"""Dropout from 16 random bits an element: half the cost of the usual 32."""

import contextlib
import contextvars
import functools
from collections.abc import Iterator
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, UInt16

from bertjax.errors import UserError
from bertjax.layers.random_bits import bits16

_LEVELS = 1 << 16

_row_keys: contextvars.ContextVar[Array | None] = contextvars.ContextVar("row_keys", default=None)


@contextlib.contextmanager
def drawn_by_rows(keys: Key[Array, " B"]) -> Iterator[None]:
    """Lets each row of the batch that is traced meanwhile draw from a key of its own.

    What is dropped then depends neither on the mesh nor on the parts that a batch is cut into.
    """
    token = _row_keys.set(keys)
    try:
        yield
    finally:
        _row_keys.reset(token)


class Kept(NamedTuple):
    """Which elements of an array stay, and what they are multiplied by."""

    where: Bool[Array, "*shape"]
    times: float


def scaled(x: Float[Array, "*shape"], kept: Kept | None) -> Float[Array, "*shape"]:
    """What stays of x, larger, and zeros; x where all of it stays."""
    return x if kept is None else _scaled(x, *kept)


# For the gradient, nothing but the choice is kept: not zeros in the shape of x.
@functools.partial(jax.checkpoint, prevent_cse=False, static_argnums=2)
def _scaled(
    x: Float[Array, "*shape"], where: Bool[Array, "*shape"], times: float
) -> Float[Array, "*shape"]:
    return jnp.where(where, x * jnp.asarray(times, x.dtype), 0)


class Dropout(nn.Module):
    """Zeroes a share of the elements and scales up the others (Srivastava et al. 2014).

    Attributes:
      rate: Share of elements that are zeroed, to a precision of 2**-16.
      by_rows: Whether the first axis holds the rows of the batch, or of each row several in turn;
        else all rows share the array.
    """

    rate: float
    by_rows: bool = True

    def __call__(self, x: Float[Array, "*shape"], *, train: bool) -> Float[Array, "*shape"]:
        return scaled(x, self.kept(x.shape, train=train))

    @nn.compact
    def kept(self, shape: tuple[int, ...], *, train: bool) -> Kept | None:
        """Draws which elements of an array stay, and how much larger they get; None for all.

        Raises:
          UserError: the rate is none.
        """
        threshold = round(self.rate * _LEVELS)
        if not 0 <= threshold < _LEVELS:
            raise UserError(f"a dropout of {self.rate} came, wanted at least 0 and less than 1")
        if not train or threshold == 0:
            return None
        return Kept(self._bits(shape) >= threshold, _LEVELS / (_LEVELS - threshold))

    def _bits(self, shape: tuple[int, ...]) -> UInt16[Array, "..."]:
        own, rows = self.make_rng("dropout"), _row_keys.get()
        if rows is None or not self.by_rows:
            return bits16(own, shape)
        own = jax.random.bits(own, (), jnp.uint32)

        def of_row(key):
            each = (shape[0] // len(rows), *shape[1:])
            return bits16(jax.random.fold_in(key, own), each)

        return jax.vmap(of_row)(rows).reshape(shape)
