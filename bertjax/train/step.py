"""One optimizer step and one evaluation step, as pure functions to be jitted."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from bertjax.interfaces import Batch, Params, extent
from bertjax.layers.attention_kernels import XLA, with_kernel
from bertjax.layers.dense import get_precision
from bertjax.layers.dropout import per_example_key
from bertjax.pretrainer import Pretrainer, Sum
from bertjax.train.accumulation import (
    apply_with_gradient_cache,
    merge_microbatches,
    reduce_shards,
    split_microbatches,
    sum_over,
)
from bertjax.train.averaging import DoneStep, averaging_of
from bertjax.train.optimizer import where_finite
from bertjax.train.schedule import SCHEDULE_STEP
from bertjax.train.sharding import num_data_shards, vmap_data_shards
from bertjax.train.state import TrainState

Metrics = dict[str, Array]
TrainStep = Callable[..., tuple[TrainState, Metrics]]
EvalStep = Callable[..., dict[str, Sum]]

OPTIMIZER_SCOPE = "optimizer"
"""`jax.named_scope` of the update, by which profiles recognise it."""

NO_PARAMS: Params = {}

MIN_WEIGHT = 1e-6
"""Lower bound of a divisor: an objective may have no position to predict in a batch."""

Microbatches = int | Mapping[tuple[int, int], int]
"""Number of microbatches of a step; by (B, L) where it differs between phases."""

_STREAMS = {"masks": 0, "dropout": 1, "evaluation": 2}


def make_train_step(
    pretrainer: Pretrainer,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    *,
    seed: int,
    microbatches: Microbatches = 1,
    grad_reduce_in_bf16: bool = False,
    gradient_specs: Any = None,
) -> TrainStep:
    """Builds (state, batch, frozen=) -> (next state, metrics).

    Every example has its own keys, `fold_in(fold_in(seed, step), index in the global batch)`: masks
    and dropout are the same on any mesh, and for any number of hosts and microbatches.

    The loss is the weighted sum of the objectives' means over the whole batch. With microbatches,
    sums are accumulated and divided by the weights of the whole batch, so the gradient is exact; a
    loss that compares examples is computed for the whole batch (`accumulation.py`).

    `frozen` holds parameters that are not trained, such as a teacher's.

    Gradients are all-reduced over the data axis in float32, or in bfloat16 with half the
    communication; accumulation over microbatches is in float32 in any case. `gradient_specs` are
    the `PartitionSpec`s of gradients where a device updates only its shard (ZeRO).
    """
    averaging = averaging_of(optimizer)
    if isinstance(optimizer, optax.GradientTransformation):
        optimizer = optax.with_extra_args_support(optimizer)

    loss = functools.partial(_loss, pretrainer)

    def train_step(
        state: TrainState, batch: Batch, frozen: Params = NO_PARAMS
    ) -> tuple[TrainState, Metrics]:
        size, length = extent(batch)
        count = microbatches if isinstance(microbatches, int) else microbatches[size, length]
        position = batch.get(SCHEDULE_STEP, jnp.full(size, state.step, jnp.float32))
        keys = example_keys(seed, state.step, size)
        batch = {**batch, "example_key": keys, "train_step": position}
        dropout = jax.random.fold_in(_stream(seed, "dropout"), state.step)
        dropout_keys = example_keys(seed, state.step, size, "dropout")
        whole = batch, dropout_keys, state.carry
        params = averaging.gradient_params(state.average, state.params)
        cached, count = (count, 1) if pretrainer.compares_examples() else (1, count)
        if count == 1 and not grad_reduce_in_bf16 and gradient_specs is None:
            gradient, (sums, carry) = jax.grad(loss, has_aux=True)(
                params, frozen, whole, dropout, None, 1, cached
            )
            microbatch = whole
        else:
            shards = num_data_shards()
            weights = _whole_weights(pretrainer, params, frozen, batch, state.carry)

            def part_gradient(part):
                gradient, (sums, carry) = jax.grad(loss, has_aux=True)(
                    params, frozen, part, dropout, weights, count * shards
                )
                return (gradient, sums), carry

            rows = pretrainer.rows_per_example()
            parts = split_microbatches(whole, count, shards, rows)
            (gradient, sums), carry = sum_over(vmap_data_shards(part_gradient), parts)
            dtype = jnp.bfloat16 if grad_reduce_in_bf16 else None
            gradient = reduce_shards(gradient, dtype, gradient_specs)
            sums = reduce_shards(sums)
            carry = merge_microbatches(carry, rows)
            microbatch = merge_microbatches(jax.tree.map(lambda x: x[:1], parts), rows)
        metrics = {name: mean(total) for name, total in sums.items()}
        metrics |= _learning_rate(schedule, state.step, batch)
        with jax.named_scope(OPTIMIZER_SCOPE):
            state, update_metrics = _update(
                *(state, params, gradient, carry, metrics, optimizer),
                lambda params: _loss(
                    _make_twice_differentiable(pretrainer),
                    *(params, frozen, microbatch, dropout, None, 1, cached),
                )[0],
            )
        return state, metrics | update_metrics

    return train_step


def make_eval_step(pretrainer: Pretrainer, *, seed: int) -> EvalStep:
    """Builds (params, batch, frozen=) -> sums of losses and metrics, to be summed over batches.

    Masks depend on the seed and `example_id` only: every evaluation predicts the same tokens.
    There is no carry: a recurrent model treats every example as the start of a text.
    """

    def eval_step(params: Params, batch: Batch, frozen: Params = NO_PARAMS) -> dict[str, Sum]:
        batch = {**batch, "example_key": evaluation_keys(seed, batch["example_id"])}
        variables = {"params": params, "frozen": frozen}
        losses, metrics = pretrainer.apply(variables, batch, train=False)
        return _name_sums(losses, metrics)

    return eval_step


def example_keys(seed: int, step: Array, batch_size: int, purpose: str = "masks") -> Array:
    """The key of each example of the global batch in this step."""
    key = jax.random.fold_in(_stream(seed, purpose), step)
    return jax.vmap(lambda index: jax.random.fold_in(key, index))(jnp.arange(batch_size))


def evaluation_keys(seed: int, example_id: Array) -> Array:
    """The key of each example, the same in every evaluation."""
    key = _stream(seed, "evaluation")
    return jax.vmap(lambda index: jax.random.fold_in(key, index))(example_id)


def mean(total: Sum) -> Array:
    """The mean of a weighted sum; 0 where the weight is 0."""
    value, weight = total
    return value / jnp.maximum(weight, MIN_WEIGHT)


def _loss(
    pretrainer: Pretrainer,
    params: Params,
    frozen: Params,
    part: Any,
    dropout: Array,
    whole_weights: dict[str, Array] | None,
    count: int,
    cached: int = 1,
) -> tuple[Array, Any]:
    """The weighted sum of the objectives' losses of a part of a batch, their sums, and the carry.

    Args:
      pretrainer: An encoder and its objectives.
      params: Trained parameters.
      frozen: Others.
      part: Rows of the batch, their dropout keys, and the carry.
      dropout: Dropout key of the step.
      whole_weights: Weights of the objectives in the whole batch; None: those in this part.
      count: Number of parts whose losses are summed.
      cached: Number of parts for a loss that compares all examples.
    """
    (losses, metrics), carry = _apply_with_dropout(
        pretrainer, params, frozen, part, dropout, cached
    )
    weights = whole_weights or {name: weight for name, (_, weight) in losses.items()}
    loss_weights = pretrainer.loss_weights()
    total = jnp.asarray(
        sum(
            loss_weights[name] * value / jnp.maximum(weights[name], MIN_WEIGHT)
            for name, (value, _) in losses.items()
        )
    )
    sums = _name_sums(losses, metrics) | {"loss": (total, jnp.ones(()) / count)}
    return total, (sums, carry)


def _apply(
    pretrainer: Pretrainer, params: Params, frozen: Params, batch: Batch, carry: Any, **options: Any
) -> tuple[Any, Any]:
    """Computes the losses and metrics of a batch, and the carry for the next one."""
    variables = {"params": params, "frozen": frozen}
    if carry is None:
        return pretrainer.apply(variables, batch, **options), None
    variables["carry"] = carry
    results, changed = pretrainer.apply(variables, batch, mutable=["carry"], **options)
    return results, changed["carry"]


def _apply_with_dropout(
    pretrainer: Pretrainer, params: Params, frozen: Params, part: Any, dropout: Array, cached: int
) -> tuple[Any, Any]:
    """`_apply` in training; in `cached` parts if the loss compares all examples of the batch."""
    rows, dropout_keys, carry = part
    if cached > 1:
        variables = {"params": params, "frozen": frozen}
        results = apply_with_gradient_cache(
            pretrainer, variables, rows, dropout, dropout_keys, cached
        )
        return results, carry
    rngs = {"dropout": per_example_key(dropout, dropout_keys)}
    return _apply(pretrainer, params, frozen, rows, carry, train=True, rngs=rngs)


def _name_sums(losses: dict[str, Sum], metrics: dict[str, Sum]) -> dict[str, Sum]:
    return {f"{name}/loss": loss for name, loss in losses.items()} | metrics


def _whole_weights(
    pretrainer: Pretrainer, params: Params, frozen: Params, batch: Batch, carry: Any
) -> dict[str, Array]:
    """Each objective's weight sum over the whole batch.

    Weights do not depend on the output of the encoder, so the compiler drops its computation.
    """
    (losses, _), _ = _apply(pretrainer, params, frozen, batch, carry, train=False)
    return {name: weight for name, (_, weight) in losses.items()}


def _update(
    state: TrainState,
    gradient_params: Params,
    gradient: Params,
    carry: Any,
    metrics: Metrics,
    optimizer: optax.GradientTransformationExtraArgs,
    microbatch_loss: Callable[[Params], Array],
) -> tuple[TrainState, Metrics]:
    """Computes the next state; where the loss or gradient is not finite, only counters change.

    The gradient is that of `gradient_params`, which an averaging may interpolate. Second-order
    optimizers differentiate `microbatch_loss`; others do not call it.

    The learning rate depends on the step number: a skipped update does not shift the schedule.
    """
    gradient_norm = optax.tree.norm(gradient)
    finite = jnp.isfinite(metrics["loss"]) & jnp.isfinite(gradient_norm)
    objective = _as_objective(microbatch_loss, gradient_params)
    updates, opt_state = optimizer.update(
        gradient, state.opt_state, gradient_params, finite=finite, obj_fn=objective
    )
    updates = jax.tree.map(lambda update: -metrics["learning_rate"] * update, updates)

    params = where_finite(finite, optax.apply_updates(state.params, updates), state.params)
    done = DoneStep(state.step, metrics["learning_rate"], finite)
    average = averaging_of(optimizer).update(state.average, params, done)
    skipped = (~finite).astype(jnp.int32)
    state = state.replace(
        step=state.step + 1,
        params=params,
        opt_state=opt_state,
        carry=where_finite(finite, carry, state.carry),
        skipped=state.skipped + skipped,
        skipped_in_a_row=(state.skipped_in_a_row + 1) * skipped,
        average=average,
    )
    return state, {"gradient_norm": gradient_norm, "skipped": skipped}


def _make_twice_differentiable(pretrainer: Pretrainer) -> Pretrainer:
    """The same losses by plain matmuls in the dtype of the activations.

    Not all gradients of faster implementations can be differentiated again: not those of fused
    attention kernels, of 8-bit matmuls, and on CPUs of matmuls with bfloat16 operands and float32
    results.
    """
    encoder = with_kernel(pretrainer.encoder, XLA)
    plain = get_precision(encoder.precision).activations
    return pretrainer.clone(encoder=encoder.clone(precision=plain))


def _as_objective(
    microbatch_loss: Callable[[Params], Array], params: Params
) -> Callable[[Params], Array]:
    """A loss for second-order optimizers, which get no parameters that are not trained."""

    def is_masked(leaf: Any) -> bool:
        return isinstance(leaf, optax.MaskedNode)

    def fill(trained: Any, all_params: Any) -> Any:
        return all_params if is_masked(trained) else trained

    return lambda trained: microbatch_loss(jax.tree.map(fill, trained, params, is_leaf=is_masked))


def _learning_rate(schedule: optax.Schedule, step: Array, batch: Batch) -> Metrics:
    """The learning rate of a step, or of the position in the schedule that the batch has."""
    if SCHEDULE_STEP not in batch:
        return {"learning_rate": schedule(step)}
    position = batch[SCHEDULE_STEP].max()
    return {"learning_rate": schedule(position), SCHEDULE_STEP: position}


def _stream(seed: int, purpose: str) -> Array:
    """The base key of a purpose, independent of those of other purposes."""
    return jax.random.fold_in(jax.random.key(seed), _STREAMS[purpose])
