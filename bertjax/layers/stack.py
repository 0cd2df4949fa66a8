"""A stack of equal blocks, scanned: one compiled block, parameters stacked along a layer axis."""

from typing import Annotated

import flax.linen as nn
import jax
from jaxtyping import PyTree

from bertjax.constraints import OneOf
from bertjax.errors import UserError, nearest

REMAT_POLICIES = {
    "none": None,
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots_with_no_batch_dims": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


RematPolicy = Annotated[str, OneOf(REMAT_POLICIES)]


class Stack(nn.Module):
    """Applies `block` `num_layers` times, each time with its own parameters.

    Attributes:
      block: A module that maps (x, mask, train=) to the next x; or, where each layer has something
        of its own to read, (x, mask, that, train=).
      num_layers: N.
      remat: What the backward pass computes again instead of keeping: "none", "full" (all of a
        block), "dots" (all but matrix products), "dots_with_no_batch_dims" (all but products with
        parameters).
      unroll: Layers compiled in one piece. 1 compiles fastest, and remat saves most memory with it;
        N runs fastest on CPUs.
      keep_hidden_states: Whether every layer's output is returned as well.
    """

    block: nn.Module
    num_layers: int
    remat: str = "none"
    unroll: int = 1
    keep_hidden_states: bool = False

    def __call__(
        self, x: PyTree, mask: PyTree, *, train: bool, each: PyTree = None
    ) -> tuple[PyTree, PyTree]:
        """Returns the last output and, on request, all outputs with a leading layer axis.

        Args:
          x: What flows through: a sequence [B L D], or a tuple of streams of which it is the first.
          mask: What all layers read.
          train: Whether dropout is applied.
          each: What one layer reads, for all of them: arrays with a leading layer axis.
        """

        def layer(stack: "Stack", x: PyTree, own: PyTree) -> tuple[PyTree, PyTree]:
            x = stack.block(_placed(x), mask, *(() if own is None else (own,)), train=train)
            return x, x if self.keep_hidden_states else None

        if self.remat not in REMAT_POLICIES:
            raise UserError(
                f"no remat policy {self.remat!r}: {nearest(self.remat, REMAT_POLICIES)}"
            )
        if self.remat != "none":
            # Without a loop between them, the compiler would merge what is computed again with
            # what was computed first, and keep it after all.
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
            # Initialising runs once: there a loop, which compiles faster, is better.
            unroll=1 if self.is_initializing() else min(self.unroll, self.num_layers),
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        return scan(self, x, each)


def _placed(x: PyTree) -> PyTree:
    """Sequences lie along the mesh's sequence axis; further streams, being short, do not."""
    if not isinstance(x, tuple):
        return nn.with_logical_constraint(x, ("batch", "length", None))
    first, *others = x
    return _placed(first), *(nn.with_logical_constraint(o, ("batch", None, None)) for o in others)
