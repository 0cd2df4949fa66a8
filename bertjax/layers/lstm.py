"""Bidirectional LSTMs: with projections (Sak et al. 2014) for ELMo, and without for tasks.

Padding leaves the state unchanged, so that the backward direction begins at the last token of a
text. The LSTM for tasks (Graves & Schmidhuber 2005) has no projection and no clipping, and each
layer reads both directions of the layer below.
"""

import math
from collections.abc import Callable

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from bertjax.errors import UserError
from bertjax.layers.dense import Dense, Precision, contract, truncated_normal
from bertjax.layers.dropout import Dropout

FORGET_BIAS = 1.0
"""Added to the forget gate, as in TensorFlow's LSTMCell, whose weights do not include it."""

DIRECTIONS = ("forward", "backward")


@flax.struct.dataclass
class State:
    """Recurrent state; leading axes may count layers and directions.

    Attributes:
      cell: Cell state.
      hidden: Hidden state, which is the output of the last token.
    """

    cell: Float[Array, "*lead F"]
    hidden: Float[Array, "*lead P"]


def advance(
    cell: Float[Array, "B F"], gates: Float[Array, "B 4 F"]
) -> tuple[Float[Array, "B F"], Float[Array, "B F"]]:
    """One LSTM step; returns the next cell state and the output gate.

    Args:
      cell: Cell state.
      gates: In the order of TensorFlow's LSTMCell: input gate, candidate, forget and output gate.
    """
    admit, candidate, forget, emit = (gates[:, index] for index in range(4))
    cell = jax.nn.sigmoid(forget + FORGET_BIAS) * cell
    return cell + jax.nn.sigmoid(admit) * jnp.tanh(candidate), jax.nn.sigmoid(emit)


def scan_text(
    advance: Callable[[State, Float[Array, "B 4 F"]], State],
    state: State,
    gates: Float[Array, "B L 4 F"],
    mask: Bool[Array, "B L"],
    *,
    reverse: bool = False,
    unroll: int = 1,
) -> tuple[Float[Array, "B L P"], State]:
    """Scans a recurrence over a text; returns the outputs, 0 at padding, and the last state.

    Args:
      advance: Maps a state and the gates of a token to the next state.
      state: Initial state.
      gates: Contribution of the inputs to the gates.
      mask: Padding mask.
      reverse: Whether the recurrence runs from the last token to the first.
      unroll: Steps compiled in one piece.
    """

    def step(state: State, token: tuple[Array, Array]) -> tuple[State, Array]:
        gates, mask = token
        new_state = advance(state, gates)
        state = jax.tree.map(lambda new, old: jnp.where(mask, new, old), new_state, state)
        return state, jnp.where(mask, new_state.hidden, 0)

    tokens = gates.swapaxes(0, 1), mask.T[..., None]
    state, outputs = lax.scan(step, state, tokens, reverse=reverse, unroll=unroll)
    return outputs.swapaxes(0, 1), state


class ProjectedLSTM(nn.Module):
    """LSTM with a projection of the output, one layer in one direction (Sak et al. 2014).

    Attributes:
      cells: F, width of the cell state.
      features: P, width of the projected output.
      reverse: Whether it runs from the last token to the first.
      cell_clip: Largest magnitude of the cell state; 0 for no limit.
      proj_clip: Largest magnitude of the output; 0 for no limit.
      unroll: Steps compiled in one piece.
      precision: Types of operands and results; the cell state is float32.
    """

    cells: int
    features: int
    reverse: bool = False
    cell_clip: float = 3.0
    proj_clip: float = 3.0
    unroll: int = 1
    precision: Precision = Precision()

    @nn.compact
    def __call__(
        self, x: Float[Array, "B L E"], mask: Bool[Array, "B L"], state: State
    ) -> tuple[Float[Array, "B L P"], State]:
        """Returns the outputs, 0 at padding, and the last state."""
        stddev = math.sqrt(2 / (x.shape[-1] + self.features + 4 * self.cells))
        # The contribution of the inputs does not depend on the state: one matmul for all tokens.
        gates = Dense(
            (4, self.cells),
            ("embed", None, "mlp"),
            initializer_range=stddev,
            precision=self.precision,
            name="input",
        )(x)
        recurrent = self._kernel(
            "recurrent", (self.features, 4, self.cells), ("embed", None, "mlp"), stddev
        ).reshape(self.features, -1)
        project = self._kernel(
            "project",
            (self.cells, self.features),
            ("mlp", "embed"),
            math.sqrt(2 / (self.cells + self.features)),
        )

        def step(state: State, gates: Array) -> State:
            return self._step(state, gates, recurrent, project)

        return scan_text(step, state, gates, mask, reverse=self.reverse, unroll=self.unroll)

    def _step(self, state: State, gates: Array, recurrent: Array, project: Array) -> State:
        own = contract("bp,pg->bg", state.hidden, recurrent, self.precision)
        gates = (gates + own.reshape(gates.shape)).astype(jnp.float32)
        cell, output_gate = advance(state.cell, gates)
        cell = _clip(cell, self.cell_clip)
        hidden = output_gate * jnp.tanh(cell)
        hidden = contract("bf,fp->bp", hidden, project, self.precision)
        return State(cell, _clip(hidden, self.proj_clip))

    def _kernel(self, name: str, shape: tuple[int, ...], axes: tuple, stddev: float) -> Array:
        boxed = nn.with_logical_partitioning(truncated_normal(stddev), axes)
        return self.param(name, boxed, shape)


def _clip(x: Float[Array, "..."], limit: float) -> Float[Array, "..."]:
    return jnp.clip(x, -limit, limit) if limit else x


class BidirectionalStack(nn.Module):
    """ELMo's LSTM layers: independent directions, residual connections from the second layer on.

    Attributes:
      num_layers: N.
      cells: F of every layer.
      features: P, of every layer and of the input.
      cell_clip: See `ProjectedLSTM`.
      proj_clip: See `ProjectedLSTM`.
      dropout_rate: Dropout of the input of every layer.
      unroll: See `ProjectedLSTM`.
      precision: Types of operands and results.
      without_skip_connections: Whether no layer adds its input to its output.
    """

    num_layers: int
    cells: int
    features: int
    cell_clip: float = 3.0
    proj_clip: float = 3.0
    dropout_rate: float = 0.0
    unroll: int = 1
    precision: Precision = Precision()
    without_skip_connections: bool = False

    @nn.compact
    def __call__(
        self, x: Float[Array, "B L P"], mask: Bool[Array, "B L"], state: State, *, train: bool
    ) -> tuple[list[Float[Array, "B L D"]], State]:
        """Returns each layer's output, forward then backward, and the states after the last token.

        Args:
          x: Input of both directions.
          mask: Padding mask; padding is at the end.
          state: Initial state of the N layers and two directions, [B N 2 ...].
          train: Whether dropout is applied.
        """
        inputs, outputs, after = [x, x], [], []
        for layer in range(self.num_layers):
            for side, direction in enumerate(DIRECTIONS):
                own = State(state.cell[:, layer, side], state.hidden[:, layer, side])
                dropped = Dropout(self.dropout_rate)(inputs[side], train=train)
                lstm = self._lstm(direction, layer)
                hidden, own = lstm(dropped, mask, own)
                has_residual = layer and not self.without_skip_connections
                inputs[side] = hidden + dropped * mask[..., None] if has_residual else hidden
                after.append(own)
            outputs.append(jnp.concatenate(inputs, axis=-1))
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves, axis=1), *after)
        return outputs, jax.tree.map(
            lambda leaf: leaf.reshape(len(leaf), self.num_layers, 2, -1), stacked
        )

    def _lstm(self, direction: str, layer: int) -> ProjectedLSTM:
        return ProjectedLSTM(
            self.cells,
            self.features,
            direction == "backward",
            self.cell_clip,
            self.proj_clip,
            self.unroll,
            self.precision,
            name=f"{direction}_{layer}",
        )


class CarriedState(nn.Module):
    """State of an LSTM stack that is carried to the next batch, for rows that continue a text.

    It is stored in variables of the collection "carry", whose first axis is the batch. Without that
    collection every row starts from a zero state.

    Attributes:
      num_layers: N.
      cells: F.
      features: P.
      dtype: Dtype of the outputs.
    """

    num_layers: int
    cells: int
    features: int
    dtype: str = "float32"

    @nn.compact
    def __call__(self, rows: int) -> tuple[nn.Variable, nn.Variable]:
        """Returns the two variables: cell states [B N 2 F] and outputs [B N 2 P]."""
        axes = ("batch", "layers", None, None)
        boxed = nn.with_logical_partitioning(nn.initializers.zeros, axes)

        def zeros(name, width, dtype):
            shape = (rows, self.num_layers, 2, width)
            return self.variable("carry", name, lambda: boxed(None, shape, dtype))

        return zeros("cell", self.cells, "float32"), zeros("hidden", self.features, self.dtype)

    @nn.nowrap
    def is_carried(self, batch) -> bool:
        """Whether the state is carried from batch to batch."""
        given = self.is_initializing() or self.has_variable("carry", "cell")
        return "is_continuation" in batch and given

    def recall(self, batch, rows: int) -> State:
        """Returns the initial state of each row, which is zero at the start of a text."""
        if not self.is_carried(batch):
            lead = (rows, self.num_layers, 2)
            return State(
                jnp.zeros((*lead, self.cells)), jnp.zeros((*lead, self.features), self.dtype)
            )
        continues = batch["is_continuation"][:, None, None, None]
        cell, hidden = (jnp.where(continues, variable.value, 0) for variable in self(rows))
        return State(cell, hidden)

    def keep(self, batch, state: State) -> None:
        """Stores the state for the next batch, without gradient."""
        if not self.is_carried(batch) or self.is_initializing():
            return
        cell, hidden = self(len(state.cell))
        cell.value = lax.stop_gradient(state.cell)
        hidden.value = lax.stop_gradient(state.hidden)


class LSTM(nn.Module):
    """LSTM, one layer in one direction; the backward direction starts before the padding.

    Attributes:
      cells: F, width of the state and of the output.
      reverse: Whether it runs from the last token to the first.
      precision: Types of operands and results; the state is float32.
    """

    cells: int
    reverse: bool = False
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, x: Float[Array, "B L E"], mask: Bool[Array, "B L"]) -> Float[Array, "B L F"]:
        """Returns the outputs, 0 at padding."""
        axes = ("embed", None, "mlp")
        # Glorot's rule for the single kernel of input and state in TensorFlow's LSTMCell.
        stddev = math.sqrt(2 / (x.shape[-1] + 5 * self.cells))
        gates = Dense(
            (4, self.cells),
            axes,
            initializer_range=stddev,
            precision=self.precision,
            name="input",
        )(x)
        start = nn.with_logical_partitioning(truncated_normal(stddev), axes)
        recurrent = self.param("recurrent", start, (self.cells, 4, self.cells))
        recurrent = recurrent.reshape(self.cells, -1)

        def step(state: State, gates: Array) -> State:
            own = contract("bf,fg->bg", state.hidden, recurrent, self.precision)
            gates = (gates + own.reshape(gates.shape)).astype(jnp.float32)
            cell, output_gate = advance(state.cell, gates)
            return State(cell, output_gate * jnp.tanh(cell))

        nothing = jnp.zeros((len(x), self.cells))
        state = State(nothing, nothing)
        return scan_text(step, state, gates, mask, reverse=self.reverse)[0]


class BiLSTM(nn.Module):
    """Bidirectional LSTM: each layer reads both directions of the layer below.

    Attributes:
      num_layers: N; 0 for the identity.
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
        self, x: Float[Array, "B L E"], mask: Bool[Array, "B L"], *, train: bool
    ) -> Float[Array, "B L G"]:
        """Returns the last layer's output, forward then backward: G is 2 F."""
        if self.num_layers < 0 or self.cells < 1:
            raise UserError(
                f"BiLSTM: got {self.num_layers} layers of {self.cells} cells, expected 0 or more "
                "layers of 1 or more cells"
            )
        for layer in range(self.num_layers):
            dropped = Dropout(self.dropout_rate)(x, train=train)
            directions = [
                LSTM(
                    self.cells,
                    direction == "backward",
                    self.precision,
                    name=f"{direction}_{layer}",
                )(dropped, mask)
                for direction in DIRECTIONS
            ]
            x = jnp.concatenate(directions, axis=-1)
        return x
