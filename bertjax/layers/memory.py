"""What each layer was given in the batches before: segment recurrence (Dai et al. 2019, 3.2).

The memory is a carry (`interfaces.py`): variables of the collection "carry", whose first axis is
the batch. Without that collection every row begins its text.
"""

from collections.abc import Mapping

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


@flax.struct.dataclass
class Recall:
    """What is remembered at the beginning of a step; None where there is no memory.

    Attributes:
      states: What every layer was given.
      there: Which of the T places hold a token of the text that a row goes on with.
    """

    states: Float[Array, "N B T D"] | None = None
    there: Bool[Array, "B T"] | None = None


class Memory(nn.Module):
    """The last `length` remembered tokens of every row, the newest one last.

    Attributes:
      length: T.
      dtype: Of the states.
    """

    length: int
    dtype: str = "float32"

    @nn.compact
    def __call__(self, rows: int, layers: int, width: int) -> tuple[nn.Variable, nn.Variable]:
        """The two variables: states [B N T D], and which places are filled [B T]."""

        def zeros(*shape, dtype):
            axes = ("batch", "layers", None, None) if len(shape) == 4 else ("batch", None)
            boxed = nn.with_logical_partitioning(nn.initializers.zeros, axes)
            return lambda: boxed(None, shape, dtype)

        states = zeros(rows, layers, self.length, width, dtype=self.dtype)
        filled = zeros(rows, self.length, dtype=bool)
        return self.variable("carry", "states", states), self.variable("carry", "filled", filled)

    @nn.nowrap
    def wanted(self, batch: Mapping[str, Array]) -> bool:
        """Whether this call remembers."""
        given = self.is_initializing() or self.has_variable("carry", "states")
        return self.length > 0 and "remembered" in batch and given

    def recall(self, batch: Mapping[str, Array], layers: int, width: int) -> Recall:
        """What is remembered of the text that each row of the batch goes on with."""
        if not self.wanted(batch):
            return Recall()
        states, filled = self(len(batch["input_ids"]), layers, width)
        there = filled.value & batch["continues"][:, None]
        return Recall(states.value.swapaxes(0, 1), there)

    def keep(self, batch: Mapping[str, Array], recall: Recall, states: Float[Array, "N B L D"]):
        """Remembers what each layer was given now; no gradient will flow to it."""
        if recall.states is None or self.is_initializing():
            return
        there = jnp.concatenate([recall.there, batch["remembered"]], axis=1)
        # Places that hold nothing come first, so that distances count tokens of the text alone.
        kept = jnp.argsort(there, axis=1, stable=True)[:, -self.length :]
        both = jnp.concatenate([recall.states, states.astype(self.dtype)], axis=2)
        taken = jnp.take_along_axis(both, kept[None, :, :, None], axis=2)
        variables = self(both.shape[1], both.shape[0], both.shape[3])
        variables[0].value = jax.lax.stop_gradient(taken.swapaxes(0, 1))
        variables[1].value = jnp.take_along_axis(there, kept, axis=1)
