"""Adaptive computation time: one block applied to each token until it halts.

The recurrence in depth of the Universal Transformer (Dehghani et al. 2019, section 2), with
adaptive computation time (Graves 2016) for each position, as in the paper's appendix C.
"""

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bertjax.layers.dense import Dense
from bertjax.layers.embeddings import sinusoids_at
from bertjax.layers.masks import Mask


@flax.struct.dataclass
class ACTState:
    """State of each token between two steps.

    Attributes:
      state: Input of the block, unchanged once a token has halted.
      output: Weighted sum of the states so far.
      halting: Sum of the halting probabilities so far.
      remainder: 1 minus that sum before the token halted.
      steps: Number of steps.
    """

    state: Float[Array, "B L D"]
    output: Float[Array, "B L D"]
    halting: Float[Array, "B L"]
    remainder: Float[Array, "B L"]
    steps: Float[Array, "B L"]


class AdaptiveComputation(nn.Module):
    """Applies a block up to `max_steps` times, with embeddings of time and position.

    Attributes:
      block: A module that maps (x, mask, train=) to the next x.
      max_steps: T.
      threshold: A token halts once the sum of its halting probabilities exceeds it; 0: all tokens
        take T steps.
      halting_bias: Initial bias of the halting unit.
      unroll: Steps compiled in one piece.
    """

    block: nn.Module
    max_steps: int
    threshold: float = 0.99
    halting_bias: float = 1.0
    unroll: int = 1

    @nn.compact
    def __call__(
        self, x: Float[Array, "B L D"], mask: Mask, *, train: bool
    ) -> tuple[Float[Array, "B L D"], Float[Array, "B L"], Float[Array, "T B L D"]]:
        """Returns the outputs, the ponder time of each token, and the states of all steps."""
        signals = jnp.asarray(
            time_and_position_signals(self.max_steps, x.shape[1], x.shape[2]), x.dtype
        )

        def step(module: "AdaptiveComputation", act: ACTState, signal: Array):
            block_input = act.state + signal
            state = module.block(block_input, mask, train=train)
            probability = module.probability(block_input) if module.threshold else None
            act = advance(act, state, probability, module.threshold)
            return act, act.state

        scan = nn.scan(
            step,
            variable_broadcast="params",
            split_rngs={"params": False, "dropout": True},
            length=self.max_steps,
            unroll=1 if self.is_initializing() else min(self.unroll, self.max_steps),
        )
        zeros = jnp.zeros(x.shape[:2])
        initial = ACTState(x, jnp.zeros_like(x), zeros, zeros, zeros)
        act, states = scan(self, initial, signals)
        return act.output, act.steps + act.remainder, states

    @nn.compact
    def probability(self, block_input: Float[Array, "B L D"]) -> Float[Array, "B L"]:
        """Computes the halting probability of each token from the input of the block."""
        dense = Dense((1,), ("embed", None), initial_bias=self.halting_bias, name="halting")
        return jax.nn.sigmoid(dense(block_input.astype(jnp.float32)))[..., 0]


def advance(
    before: ACTState,
    state: Float[Array, "B L D"],
    probability: Float[Array, "B L"] | None,
    threshold: float,
) -> ACTState:
    """Advances tokens that have not halted by one step; without probabilities, all tokens."""
    if probability is None:
        return before.replace(state=state, output=state, steps=before.steps + 1)
    running = before.halting < 1
    halting = before.halting + jnp.where(running, probability, 0)
    halts = running & (halting > threshold)
    remainder = jnp.where(halts, 1 - before.halting, 0)
    share = jnp.where(halts, remainder, jnp.where(running, probability, 0))[..., None]
    share = share.astype(state.dtype)
    return ACTState(
        state=jnp.where(running[..., None], state, before.state),
        output=state * share + before.output * (1 - share),
        halting=jnp.where(halts, 1.0, halting),
        remainder=before.remainder + remainder,
        steps=before.steps + running,
    )


def time_and_position_signals(steps: int, length: int, width: int) -> Float[np.ndarray, "T L D"]:
    """Sinusoidal embeddings of time plus those of position, both from 1 on (section 2.1)."""
    times, places = (sinusoids_at(1 + np.arange(n), width) for n in (steps, length))
    return times[:, None] + places
