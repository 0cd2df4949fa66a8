"""A stack of blocks of which some parts are the same in every layer (Lan et al. 2020, 3.1)."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
from jax import lax
from jaxtyping import Array, PyTree

from bertjax.errors import UserError, nearest
from bertjax.layers.stack import REMAT_POLICIES

Parameters = Mapping[str, Any]


class SharedStack(nn.Module):
    """Applies `layer` `num_layers` times; the parts that are named in `shared` have one copy.

    One copy of a part lies under `shared`, the copies of the others under `block` with a leading
    layer axis, as in `Stack`. Layers differ in dropout whatever they share.

    Attributes:
      layer: A module that maps (x, mask, train=) to the next x.
      num_layers: N.
      shared: Names of submodules of `layer`.
      remat: What the backward pass computes again (`layers/stack.py`).
      unroll: Layers compiled in one piece (`layers/stack.py`).
      keep_hidden_states: Whether every layer's output is returned as well.
    """

    layer: nn.Module
    num_layers: int
    shared: tuple[str, ...] = ()
    remat: str = "none"
    unroll: int = 1
    keep_hidden_states: bool = False

    @nn.compact
    def __call__(self, x: Array, mask: PyTree, *, train: bool) -> tuple[Array, Array | None]:
        """Returns the last output and, on request, all outputs with a leading layer axis."""
        if self.remat not in REMAT_POLICIES:
            raise UserError(
                f"no remat policy {self.remat!r}: {nearest(self.remat, REMAT_POLICIES)}"
            )
        shared, own = self._parameters(x, mask)
        dropout = None
        if self.has_rng("dropout"):
            dropout = jax.random.split(self.make_rng("dropout"), self.num_layers)

        def apply(x, layer):
            own, key = layer
            x = nn.with_logical_constraint(x, ("batch", "length", None))
            rngs = {} if key is None else {"dropout": key}
            x = self.layer.apply({"params": shared | own}, x, mask, train=train, rngs=rngs)
            return x, x if self.keep_hidden_states else None

        unroll = min(self.unroll, self.num_layers)
        if self.remat != "none":
            # As in `Stack`: between unrolled layers nothing may be merged.
            policy = REMAT_POLICIES[self.remat]
            apply = jax.checkpoint(apply, policy=policy, prevent_cse=unroll >= self.num_layers)
        return lax.scan(apply, x, (own, dropout), length=self.num_layers, unroll=unroll)

    def _parameters(self, x: Array, mask: PyTree) -> tuple[Parameters, Parameters]:
        """One copy of what is shared, and N copies of the rest."""

        def fresh(key: Array) -> Parameters:
            return self.layer.init(key, x, mask, train=False)["params"]

        parts = jax.eval_shape(fresh, jax.random.key(0))
        unknown = [name for name in self.shared if name not in parts]
        if unknown:
            raise ValueError(f"a layer has no {unknown[0]}: {nearest(unknown[0], parts)}")

        def one(key: Array) -> Parameters:
            made = fresh(key)
            return {name: made[name] for name in self.shared}

        def many(key: Array) -> Parameters:
            def rest(key: Array) -> Parameters:
                return {name: part for name, part in fresh(key).items() if name not in self.shared}

            made = jax.vmap(rest)(jax.random.split(key, self.num_layers))
            return nn.meta.add_axis(made, 0, {nn.PARTITION_NAME: "layers"})

        shared = self.param("shared", one) if self.shared else {}
        own = self.param("block", many) if len(self.shared) < len(parts) else {}
        return shared, own
