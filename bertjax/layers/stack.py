"""A stack of equal blocks, scanned: one compiled block, parameters stacked along a layer axis."""

import flax.linen as nn
import jax
from jaxtyping import Array

from bertjax.errors import UserError, nearest

REMAT_POLICIES = {
    "none": None,
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots_with_no_batch_dims": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


class Stack(nn.Module):
    """Applies `block` `num_layers` times, each time with its own parameters.

    Attributes:
      block: A module that maps (x, mask, train=) to the next x.
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

    def __call__(self, x: Array, mask: Array, *, train: bool) -> tuple[Array, Array | None]:
        """Returns the last output and, on request, all outputs with a leading layer axis."""

        def layer(stack: "Stack", x: Array, _: None) -> tuple[Array, Array | None]:
            x = nn.with_logical_constraint(x, ("batch", "length", None))
            x = stack.block(x, mask, train=train)
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
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            length=self.num_layers,
            # Initialising runs once: there a loop, which compiles faster, is better.
            unroll=1 if self.is_initializing() else min(self.unroll, self.num_layers),
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        return scan(self, x, None)
