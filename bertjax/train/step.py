"""One optimizer step, and one step of evaluation, as pure functions to be jitted."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from bertjax.interfaces import Batch, Params, Pretrainer, Sum
from bertjax.train.state import TrainState

Metrics = dict[str, Array]
TrainStep = Callable[..., tuple[TrainState, Metrics]]
EvalStep = Callable[..., dict[str, Sum]]

NOTHING: Params = {}

TINY = 1e-6
"""Divides where an objective found nothing to predict."""

_STREAMS = {"masks": 0, "dropout": 1, "evaluation": 2}


def make_train_step(
    pretrainer: Pretrainer,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    *,
    seed: int,
    microbatches: int = 1,
) -> TrainStep:
    """Builds (state, batch, frozen=) -> (next state, metrics).

    Every example has its own key, `fold_in(fold_in(seed, step), index in the global batch)`: masks
    are the same on any mesh, on any number of hosts and with any number of microbatches.

    A loss is the weighted sum of the objectives' means over the whole batch. With microbatches,
    sums are accumulated and divided by the weights of the whole batch, so the gradient is exact.

    `frozen` holds the parameters that no step changes, such as a teacher's.
    """
    loss_weights = pretrainer.loss_weights()

    def loss(params, frozen, part, dropout, whole_weights):
        losses, metrics = pretrainer.apply(
            {"params": params, "frozen": frozen}, part, train=True, rngs={"dropout": dropout}
        )
        weights = whole_weights or {name: weight for name, (_, weight) in losses.items()}
        total = sum(
            loss_weights[name] * value / jnp.maximum(weights[name], TINY)
            for name, (value, _) in losses.items()
        )
        return total, _named(losses, metrics) | {"loss": (total, jnp.ones(()) / microbatches)}

    def train_step(
        state: TrainState, batch: Batch, frozen: Params = NOTHING
    ) -> tuple[TrainState, Metrics]:
        batch = {**batch, "example_key": example_keys(seed, state.step, len(batch["input_ids"]))}
        dropout = jax.random.fold_in(_stream(seed, "dropout"), state.step)
        if microbatches == 1:
            gradient, sums = jax.grad(loss, has_aux=True)(
                state.params, frozen, batch, dropout, None
            )
        else:
            parts = split(batch, microbatches)
            weights = _whole_weights(pretrainer, state.params, frozen, parts)

            def part_gradient(part_and_index):
                part, index = part_and_index
                key = jax.random.fold_in(dropout, index)
                return jax.grad(loss, has_aux=True)(state.params, frozen, part, key, weights)

            gradient, sums = _sum_over(part_gradient, (parts, jnp.arange(microbatches)))
        metrics = {name: mean(total) for name, total in sums.items()}
        metrics["learning_rate"] = schedule(state.step)
        state, update_metrics = _update(state, gradient, metrics, optimizer)
        return state, metrics | update_metrics

    return train_step


def make_eval_step(pretrainer: Pretrainer, *, seed: int) -> EvalStep:
    """Builds (params, batch, frozen=) -> sums of losses and metrics, to be added up over batches.

    Masks depend on the seed and on `example_id` alone: every evaluation predicts the same tokens.
    """

    def eval_step(params: Params, batch: Batch, frozen: Params = NOTHING) -> dict[str, Sum]:
        batch = {**batch, "example_key": evaluation_keys(seed, batch["example_id"])}
        variables = {"params": params, "frozen": frozen}
        losses, metrics = pretrainer.apply(variables, batch, train=False)
        return _named(losses, metrics)

    return eval_step


def example_keys(seed: int, step: Array, batch_size: int) -> Array:
    """The key of each example of the global batch in this step."""
    key = jax.random.fold_in(_stream(seed, "masks"), step)
    return jax.vmap(lambda index: jax.random.fold_in(key, index))(jnp.arange(batch_size))


def evaluation_keys(seed: int, example_id: Array) -> Array:
    """The same key for an example in every evaluation."""
    key = _stream(seed, "evaluation")
    return jax.vmap(lambda index: jax.random.fold_in(key, index))(example_id)


def split(batch: Batch, microbatches: int) -> Batch:
    """[B ...] becomes [m B/m ...]; every device keeps the rows that it holds."""

    def one(x):
        return x.reshape(-1, microbatches, *x.shape[1:]).swapaxes(0, 1)

    return jax.tree.map(one, dict(batch))


def mean(total: Sum) -> Array:
    """The mean that a weighted sum and its weight stand for; 0 where nothing was weighed."""
    value, weight = total
    return value / jnp.maximum(weight, TINY)


def _named(losses: dict[str, Sum], metrics: dict[str, Sum]) -> dict[str, Sum]:
    return {f"{name}/loss": loss for name, loss in losses.items()} | metrics


def _whole_weights(
    pretrainer: Pretrainer, params: Params, frozen: Params, parts: Batch
) -> dict[str, Array]:
    """Each objective's weight sum over all parts.

    Weights do not depend on what the encoder computes, so the compiler drops everything but them.
    """

    def part_weights(part):
        losses, _ = pretrainer.apply({"params": params, "frozen": frozen}, part, train=False)
        return {name: weight for name, (_, weight) in losses.items()}

    return _sum_over(part_weights, parts)


def _sum_over(function: Callable, parts: Any) -> Any:
    """The sum of `function(part)` over the leading axis of `parts`, one part after the other."""
    shapes = jax.eval_shape(function, jax.tree.map(lambda x: x[0], parts))
    zeros = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)

    def add(sums, part):
        return jax.tree.map(jnp.add, sums, function(part)), None

    return jax.lax.scan(add, zeros, parts)[0]


def _update(
    state: TrainState, gradient: Params, metrics: Metrics, optimizer: optax.GradientTransformation
) -> tuple[TrainState, Metrics]:
    """The next state; where the loss or the gradient is not finite, only counters move.

    The learning rate belongs to the step number, so that a skipped update does not shift it.
    """
    gradient_norm = optax.tree.norm(gradient)
    finite = jnp.isfinite(metrics["loss"]) & jnp.isfinite(gradient_norm)
    updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
    updates = jax.tree.map(lambda update: -metrics["learning_rate"] * update, updates)
    params = optax.apply_updates(state.params, updates)

    def kept(new, old):
        return jax.tree.map(lambda new, old: jnp.where(finite, new, old), new, old)

    skipped = (~finite).astype(jnp.int32)
    state = state.replace(
        step=state.step + 1,
        params=kept(params, state.params),
        opt_state=kept(opt_state, state.opt_state),
        skipped=state.skipped + skipped,
        skipped_in_a_row=(state.skipped_in_a_row + 1) * skipped,
    )
    return state, {"gradient_norm": gradient_norm, "skipped": skipped}


def _stream(seed: int, purpose: str) -> Array:
    """Keys for different purposes never meet."""
    return jax.random.fold_in(jax.random.key(seed), _STREAMS[purpose])
