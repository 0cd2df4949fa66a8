"""A stack of equal blocks, scanned: one compiled block, parameters stacked along a layer axis.

`SharedStack` shares some parts of the parameters between all layers (Lan et al. 2020, section 3.1).
A repeating group of blocks, each with its own attention, is in `alternating_stack.py`.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PyTree

from bertjax.constraints import OneOf
from bertjax.errors import UserError, nearest
from bertjax.interfaces import Params

REMAT_POLICIES = {
    "none": None,
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots_with_no_batch_dims": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


RematPolicy = Annotated[str, OneOf(REMAT_POLICIES)]


def check_remat(policy: str) -> None:
    """Checks the name of a rematerialisation policy.

    Raises:
      UserError: there is no such policy.
    """
    if policy not in REMAT_POLICIES:
        raise UserError(f"no remat policy {policy!r}: {nearest(policy, REMAT_POLICIES)}")


class Stack(nn.Module):
    """Applies `block` `num_layers` times, each time with its own parameters.

    Attributes:
      block: A module that maps (x, mask, train=) to the next x; (x, mask, own, train=) if layers
        have separate inputs.
      num_layers: N.
      remat: Rematerialisation in the backward pass: "none", "full" (everything), "dots" (all but
        matmuls), "dots_with_no_batch_dims" (all but matmuls with parameters).
      unroll: Layers compiled in one piece. 1 compiles fastest, and remat saves most memory with it;
        N runs fastest on CPUs.
      keep_hidden_states: Whether the output of every layer is returned too.
    """

    block: nn.Module
    num_layers: int
    remat: str = "none"
    unroll: int = 1
    keep_hidden_states: bool = False

    def __call__(
        self, x: PyTree, mask: PyTree, *, train: bool, layer_inputs: PyTree = None
    ) -> tuple[PyTree, PyTree]:
        """Returns the last output and, on request, all outputs with a leading layer axis.

        Args:
          x: A sequence [B L D], or a tuple of streams of which it is the first.
          mask: Passed to all layers.
          train: Whether dropout is applied.
          layer_inputs: Inputs of single layers, with a leading layer axis.
        """

        def layer(stack: "Stack", x: PyTree, own: PyTree) -> tuple[PyTree, PyTree]:
            x = stack.block(_shard_sequence(x), mask, *(() if own is None else (own,)), train=train)
            return x, x if self.keep_hidden_states else None

        check_remat(self.remat)
        if self.remat != "none":
            # Without a loop in between, common subexpression elimination would undo the
            # rematerialisation.
            layer = nn.remat(
                layer,
                policy=REMAT_POLICIES[self.remat],
                prevent_cse=self.unroll >= self.num_layers,
            )
        scan = nn.scan(
            layer,
            variable_axes={"params": 0, "cache": 0},
            split_rngs={"params": True, "dropout": True},
            length=self.num_layers,
            # Initialisation runs once, and a loop compiles faster.
            unroll=1 if self.is_initializing() else min(self.unroll, self.num_layers),
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        return scan(self, x, layer_inputs)


def _shard_sequence(x: PyTree) -> PyTree:
    """Shards a sequence over the mesh's sequence axis; further streams are short and are not."""
    if not isinstance(x, tuple):
        return nn.with_logical_constraint(x, ("batch", "length", None))
    first, *others = x
    return _shard_sequence(first), *(
        nn.with_logical_constraint(o, ("batch", None, None)) for o in others
    )


Parameters = Mapping[str, Any]


class SharedStack(nn.Module):
    """Applies `layer` `num_layers` times; all layers share the parameters of submodules `shared`.

    Shared parameters are under `shared`, all others under `block` with a leading layer axis, as in
    `Stack`. Every layer has its own dropout masks.

    Attributes:
      layer: A module that maps (x, mask, train=) to the next x.
      num_layers: N.
      shared: Names of submodules of `layer`.
      remat: As in `Stack`.
      unroll: Layers compiled in one piece (`layers/stack.py`).
      keep_hidden_states: Whether the output of every layer is returned too.
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
        check_remat(self.remat)
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
            # As in `Stack`: unrolled layers need protection from common subexpression elimination.
            policy = REMAT_POLICIES[self.remat]
            apply = jax.checkpoint(apply, policy=policy, prevent_cse=unroll >= self.num_layers)
        return lax.scan(apply, x, (own, dropout), length=self.num_layers, unroll=unroll)

    def _parameters(self, x: Array, mask: PyTree) -> tuple[Parameters, Parameters]:
        """Initialises the shared parameters, and those of each layer [N, ...]."""

        def init_layer(key: Array) -> Parameters:
            return self.layer.init(key, x, mask, train=False)["params"]

        parts = jax.eval_shape(init_layer, jax.random.key(0))
        unknown = [name for name in self.shared if name not in parts]
        if unknown:
            raise ValueError(f"a layer has no {unknown[0]}: {nearest(unknown[0], parts)}")

        def init_shared(key: Array) -> Parameters:
            params = init_layer(key)
            return {name: params[name] for name in self.shared}

        def init_own(key: Array) -> Parameters:
            def rest(key: Array) -> Parameters:
                return {
                    name: part for name, part in init_layer(key).items() if name not in self.shared
                }

            params = jax.vmap(rest)(jax.random.split(key, self.num_layers))
            return nn.meta.add_axis(params, 0, {nn.PARTITION_NAME: "layers"})

        shared = self.param("shared", init_shared) if self.shared else {}
        own = self.param("block", init_own) if len(self.shared) < len(parts) else {}
        return shared, own


_STACKS = ("layers", "decoder_layers")
"""Names of stacks in the parameters of decoders."""


def split_layers(params: Params) -> Params:
    """Splits the arrays of all stacks of layers along their first axis, for decoding on CPUs.

    XLA for CPUs copies the slice of a stacked array that a layer multiplies by, for every token. If
    `stack_layers` builds the stack where the layers are applied one after the other, it reads the
    parts instead.

    Returns:
      Parameters with tuples of N arrays instead of arrays [N ...]; on other devices as they are.
    """
    if jax.default_backend() != "cpu":
        return jax.tree.map(jnp.asarray, params)
    return _map_stacks(lambda array: tuple(map(jnp.asarray, array)), params)


def stack_layers(params: Params) -> Params:
    """Stacks the arrays of layers that `split_layers` has split, inside of compiled functions."""
    return _map_stacks(
        lambda parts: jnp.stack(parts) if isinstance(parts, tuple) else parts, params
    )


def _map_stacks(change: Callable[[Any], Any], tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    return {
        name: jax.tree.map(change, branch, is_leaf=lambda leaf: isinstance(leaf, tuple))
        if name in _STACKS
        else _map_stacks(change, branch)
        for name, branch in tree.items()
    }
