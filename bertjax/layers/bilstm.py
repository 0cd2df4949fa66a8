"""Long short-term memory in both directions (Graves & Schmidhuber 2005), to be learned on features.

Unlike ELMo's (`layers/recurrent.py`) it has no projection and no limits, and each layer reads what
both directions of the one below have made.
"""

import math

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bertjax.errors import UserError
from bertjax.layers.dense import Dense, truncated_normal
from bertjax.layers.dropout import Dropout
from bertjax.layers.precision import Precision, contract
from bertjax.layers.recurrent import DIRECTIONS, State, advance, over_text


class LSTM(nn.Module):
    """One layer in one direction; the backward one begins at the last token that is there.

    Attributes:
      cells: F, width of the state and of the output.
      reverse: Whether it reads from the last token to the first.
      precision: Types of operands and results; the state is float32.
    """

    cells: int
    reverse: bool = False
    precision: Precision = Precision()

    @nn.compact
    def __call__(
        self, x: Float[Array, "B L E"], there: Bool[Array, "B L"]
    ) -> Float[Array, "B L F"]:
        """Returns the outputs, 0 where no token is."""
        axes = ("embed", None, "mlp")
        # Glorot's over the one kernel that TensorFlow's LSTMCell has for input and state.
        deviation = math.sqrt(2 / (x.shape[-1] + 5 * self.cells))
        gates = Dense(
            (4, self.cells),
            axes,
            initializer_range=deviation,
            precision=self.precision,
            name="input",
        )(x)
        start = nn.with_logical_partitioning(truncated_normal(deviation), axes)
        recurrent = self.param("recurrent", start, (self.cells, 4, self.cells))
        recurrent = recurrent.reshape(self.cells, -1)

        def following(state: State, gates: Array) -> State:
            own = contract("bf,fg->bg", state.hidden, recurrent, self.precision)
            gates = (gates + own.reshape(gates.shape)).astype(jnp.float32)
            cell, shown = advance(state.cell, gates)
            return State(cell, shown * jnp.tanh(cell))

        nothing = jnp.zeros((len(x), self.cells))
        state = State(nothing, nothing)
        return over_text(following, state, gates, there, reverse=self.reverse)[0]


class BiLSTM(nn.Module):
    """Layers in both directions, each of which reads both directions of the one below.

    Attributes:
      num_layers: How many; with none, what comes in goes out.
      cells: F, width of each direction.
      dropout_rate: Dropout of the input of every layer.
      precision: Types of operands and results.
    """

    num_layers: int
    cells: int
    dropout_rate: float = 0.0
    precision: Precision = Precision()

    @nn.compact
    def __call__(
        self, x: Float[Array, "B L E"], there: Bool[Array, "B L"], *, train: bool
    ) -> Float[Array, "B L G"]:
        """Returns the last layer's output, forward then backward: G is 2 F."""
        if self.num_layers < 0 or self.cells < 1:
            raise UserError(
                f"a BiLSTM of {self.num_layers} layers of {self.cells} cells: wanted 0 or more "
                "layers of 1 or more cells"
            )
        for layer in range(self.num_layers):
            given = Dropout(self.dropout_rate)(x, train=train)
            made = [
                LSTM(
                    self.cells,
                    direction == "backward",
                    self.precision,
                    name=f"{direction}_{layer}",
                )(given, there)
                for direction in DIRECTIONS
            ]
            x = jnp.concatenate(made, axis=-1)
        return x
