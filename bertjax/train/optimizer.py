"""Build an optimizer: gradient clipping, an algorithm from `optimizers/`, the learning rate.

Common to all algorithms: no weight decay of biases and LayerNorm scales, nor of parameters without
a gradient; layer-wise learning rate decay; frozen parts; an average of the weights. The muP rule
for wider models is part of those algorithms for which it is published.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, PyTree

from bertjax import catalog
from bertjax.constraints import Relation
from bertjax.errors import UserError
from bertjax.interfaces import Params
from bertjax.train.averaging import (
    NO_AVERAGE,
    Averaging,
    ExponentialMovingAverage,
    LatestWeightAveraging,
)

FOLDER = "train/optimizers"

SHARED = (
    *("max_grad_norm", "layerwise_decay", "frozen_layers"),
    *("ema_decay", "lawa_every", "lawa_window"),
)
"""Fields of `config.optimizer` that `make` applies to every algorithm."""

NO_DECAY = ("bias", "scale")
"""Ends of the names of parameters without weight decay."""
STACKED = ("layers", "block")
"""Parameters below two names with these ends have a leading layer axis (`layers/stack.py`)."""
GROUPED = ("layers", "group")
"""Such parameters have two: groups, and the blocks of a group (`layers/grouped_stack.py`)."""
FIRST_LAYER = "first_layer"
"""A layer below the stack (`models/modernbert.py`)."""
DEPTH_WEIGHTS = "depth_weights"
"""Weights of the sums before both halves of each layer (`layers/depth_weighted_stack.py`)."""
_ABOVE = ("pooler", "norm")
"""Parts of an encoder above the stack."""

UNSCALED = optax.identity()
"""The rule for the widths of a model in the standard parametrisation."""

DECAY_BELOW_ONE = Relation(
    ("learning_rate", "weight_decay"),
    lambda peak, decay: peak * decay < 1,
    "learning_rate * weight_decay < 1, the share of a parameter that a step removes",
    "lower one of them",
)
"""Relation of an optimizer with decoupled weight decay."""


class AveragingOptimizer(NamedTuple):
    """An optax transformation, and the average of the weights that are evaluated.

    Attributes:
      init: Parameters -> state.
      update: (gradient, state, parameters, finite=, obj_fn=) -> (direction, next state). The state
        stays the same where `finite` is False. `obj_fn` maps parameters to the loss of one
        microbatch, for algorithms that differentiate it.
      averaging: See `train/averaging.py`.
    """

    init: Callable[..., Any]
    update: Callable[..., Any]
    averaging: Averaging


def make(
    name: str,
    *,
    max_grad_norm: float = 1.0,
    layerwise_decay: float = 1.0,
    num_layers: int = 0,
    frozen_layers: int = -1,
    frozen_parts: Sequence[str] = (),
    ema_decay: float = 0.0,
    lawa_every: int = 0,
    lawa_window: int = 0,
    mup_width_ratio: float = 0.0,
    **hyperparameters: Any,
) -> AveragingOptimizer:
    """Builds the map from gradient to direction; a step subtracts learning rate times direction.

    Args:
      name: A file of `optimizers/`.
      max_grad_norm: Gradients with a larger global norm are scaled down to it; 0 clips nothing. The
        norm is of trained parameters.
      layerwise_decay: Factor between the steps of a layer and those of the layer above.
      num_layers: N, of the stack; required by `layerwise_decay` and `frozen_layers`.
      frozen_layers: Number of layers, from the first, that are frozen together with the embeddings;
        -1 freezes nothing.
      frozen_parts: Top-level names of parameters that are not trained and have no optimizer state.
      ema_decay: Decay of a moving average of the weights; 0 for that of the optimizer, if any.
      lawa_every: Steps between the snapshots of the weights that are averaged; 0 for none.
      lawa_window: Number of these snapshots.
      mup_width_ratio: m, the width of a muP model over its base model's; 0 for a model in the
        standard parametrisation.
      hyperparameters: Fields of the optimizer.

    Raises:
      UserError: an unknown name, or an algorithm without a rule for muP.
    """
    algorithm = catalog.load(FOLDER, name).Optimizer(**hyperparameters)
    rule = (_mup_rule(name, mup_width_ratio),) if mup_width_ratio else ()
    clip = clip_by_global_norm(max_grad_norm) if max_grad_norm else optax.identity()
    freeze = freeze_layers(frozen_layers, num_layers) if frozen_layers >= 0 else optax.identity()
    # One flat chain: checkpoints name optimizer state by its index here; the first has none.
    # Layers are frozen in the gradient too, whose norm would count them.
    chain = [optax.chain(freeze, clip), *map(_skippable, algorithm.transforms(*rule))]
    if layerwise_decay != 1.0:
        chain.append(scale_by_depth(layerwise_decay, num_layers))
    if frozen_layers >= 0:
        chain.append(freeze)
    transform = _freeze(frozen_parts, _with_gradient_mask(optax.chain(*chain)))
    averaging = _averaging(algorithm, ema_decay, lawa_every, lawa_window)
    return AveragingOptimizer(*transform, averaging)


def _mup_rule(name: str, width_ratio: float) -> optax.GradientTransformation:
    """Divides the updates of kernels by m (Yang et al. 2022, table 3).

    It precedes the decoupled weight decay, which does not depend on the width (appendix B.3).

    Raises:
      UserError: an algorithm without this rule.
    """
    if not _has_mup_rule(name):
        known = ", ".join(filter(_has_mup_rule, catalog.names(FOLDER)))
        raise UserError(
            f"config.optimizer.name: got {name!r} with a model that has mup_base_width, expected "
            f"one of {known}, which support muP; change the optimizer"
        )
    if width_ratio == 1:
        return UNSCALED

    def scale(path: tuple, update: Array) -> Array:
        return update / width_ratio if parameter_name(path)[-1] == "kernel" else update

    return optax.stateless(lambda updates, _: jax.tree_util.tree_map_with_path(scale, updates))


def _has_mup_rule(name: str) -> bool:
    return getattr(catalog.load(FOLDER, name).Optimizer, "has_mup_rule", False)


def _averaging(algorithm: Any, ema_decay: float, lawa_every: int, lawa_window: int) -> Averaging:
    if ema_decay:
        return ExponentialMovingAverage(ema_decay)
    if lawa_every:
        return LatestWeightAveraging(lawa_every, lawa_window)
    return algorithm.averaging() if hasattr(algorithm, "averaging") else NO_AVERAGE


def _freeze(
    frozen_parts: Sequence[str], trained: optax.GradientTransformationExtraArgs
) -> optax.GradientTransformationExtraArgs:
    """Restricts an optimizer to the parts that are not frozen; the update of those is zero."""
    if not frozen_parts:
        return trained

    def parts(included: Callable[[str], bool]) -> Callable[[Params], Params]:
        return lambda params: {name: included(name) for name in params}

    return optax.chain(
        optax.masked(trained, parts(lambda name: name not in frozen_parts)),
        optax.masked(optax.set_to_zero(), parts(lambda name: name in frozen_parts)),
    )


def _with_gradient_mask(
    chain: optax.GradientTransformationExtraArgs,
) -> optax.GradientTransformationExtraArgs:
    """Passes `has_gradient` to a chain: for each parameter, whether its gradient is nonzero.

    Computed from sums of squares, which clipping needs anyway: another pass over it costs time.
    """

    def update(gradient, state, params, *, finite=True, **extra):
        has_gradient = jax.tree.map(lambda array: jnp.sum(jnp.square(array)) > 0, gradient)
        extra |= {"finite": finite, "has_gradient": has_gradient}
        return chain.update(gradient, state, params, **extra)

    return optax.GradientTransformationExtraArgs(chain.init, update)


class SkippableTransformation(optax.GradientTransformationExtraArgs):
    """A transformation whose state stays the same where the argument `finite` is False."""


def _skippable(transform: optax.GradientTransformation) -> SkippableTransformation:
    if isinstance(transform, SkippableTransformation):
        return transform
    whole = optax.with_extra_args_support(transform)

    def update(updates, state, params=None, *, finite, **extra):
        updates, new = whole.update(updates, state, params, finite=finite, **extra)
        return updates, where_finite(finite, new, state)

    return SkippableTransformation(whole.init, update)


def where_finite(finite: Bool[Array, ""], new: PyTree, old: PyTree) -> PyTree:
    """Returns the new arrays where `finite` is True, else the old ones."""
    return jax.tree.map(lambda new, old: jnp.where(finite, new, old), new, old)


def scale_by_adam(b1: float, b2: float, eps: float) -> SkippableTransformation:
    """Adam (Kingma & Ba 2015, algorithm 1), as in Optax.

    On CPUs the moments are computed before the direction, which XLA would compute from copies of
    the old ones: that takes memory traffic of 60 instead of 40 bytes per parameter.
    """

    def update(gradient, state, params=None, *, finite, **_):
        count = optax.safe_increment(state.count)
        mu = optax.tree.update_moment(gradient, state.mu, b1, 1)
        nu = optax.tree.update_moment_per_elem_norm(gradient, state.nu, b2, 2)
        state = where_finite(finite, optax.ScaleByAdamState(count, mu, nu), state)
        mu, nu = jax.tree.map(_compute_first, (state.mu, state.nu))
        direction = jax.tree.map(
            lambda mean, square: mean / (jnp.sqrt(square) + eps),
            optax.tree.bias_correction(mu, b1, count),
            optax.tree.bias_correction(nu, b2, count),
        )
        return direction, state._replace(mu=mu, nu=nu)

    return SkippableTransformation(optax.scale_by_adam(b1, b2, eps).init, update)


def _compute_first(array: Array) -> Array:
    return jax.lax.platform_dependent(
        array, cpu=jax.lax.optimization_barrier, default=lambda array: array
    )


def clip_by_global_norm(max_norm: float) -> optax.GradientTransformation:
    """Scales gradients with a larger global norm down to it (Pascanu et al. 2013, algorithm 1).

    That of Optax divides by the norm. XLA does not repeat divisions in the kernels of the moments
    and the parameters, and writes the scaled gradient to memory first.
    """

    def update(gradient, _):
        factor = jnp.minimum(1.0, max_norm / optax.tree.norm(gradient))
        return jax.tree.map(lambda array: array * factor.astype(array.dtype), gradient)

    return optax.stateless(update)


def add_decayed_weights(weight_decay: float) -> optax.GradientTransformationExtraArgs:
    """Decoupled weight decay of matrices and tables that have a gradient.

    Parameters that no loss depends on, such as the pooler without a sentence objective, do not
    change; with decay they would shrink for a whole run and initialise a task worse than newly
    sampled ones.
    """

    def decay(update: Array, parameter: Array, has_gradient: Bool[Array, ""]) -> Array:
        return update + weight_decay * parameter * has_gradient

    def update(updates, state, params, *, has_gradient, **_):
        return jax.tree.map(decay, updates, params, has_gradient), state

    transform = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
    return optax.masked(transform, decay_mask, mask_compatible_extra_args=True)


def decay_mask(params: Params) -> Params:
    """True for parameters with weight decay: all but biases and the scales of LayerNorm."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: not parameter_name(path)[-1].endswith(NO_DECAY), params
    )


def scale_by_depth(decay: float, num_layers: int) -> optax.GradientTransformation:
    """Layer-wise learning rate decay (Clark et al. 2020, appendix B; the published code).

    Of N layers the i-th from below, counted from 1, is scaled by decay ** (N + 2 - i), the
    embeddings by decay ** (N + 2), and the pooler and heads above the stack not at all.

    Args:
      decay: More than 0 and at most 1.
      num_layers: N.

    Raises:
      UserError: an invalid decay, or an encoder whose layers share parameters.
    """
    if not 0 < decay <= 1:
        raise UserError(f"layerwise_decay: got {decay}, expected more than 0 and at most 1")
    powers = num_layers + 2 - np.arange(num_layers + 1)
    return _scale_layers("layerwise_decay", decay, decay**powers, off="1")


def freeze_layers(count: int, num_layers: int) -> optax.GradientTransformation:
    """Keeps the embeddings and the first `count` layers as they are; -1 freezes nothing.

    Args:
      count: 0 for the embeddings alone.
      num_layers: N.

    Raises:
      UserError: more layers than there are, or layers that share parameters.
    """
    if count > num_layers:
        raise UserError(f"frozen_layers: got {count}, expected at most {num_layers}, all layers")
    trained = (np.arange(num_layers + 1) > count).astype(np.float32)
    return _scale_layers("frozen_layers", count, trained, off="-1")


def _scale_layers(
    option: str, value: float, factors: np.ndarray, *, off: str
) -> optax.GradientTransformation:
    """Scales the updates of the embeddings and of each of the N layers by N + 1 factors.

    Parameters above the stack, such as the pooler, the last LayerNorm and heads, are not scaled.

    Args:
      option: Name of the option, for messages.
      value: Its value.
      factors: Factors of the embeddings, then of the layers from below.
      off: The value of the option that scales nothing.
    """
    num_layers = len(factors) - 1

    def scale(path: tuple, update: Array) -> Array:
        names = parameter_name(path)
        if names[0] != "encoder" or names[1] in _ABOVE:
            return update
        if names[1] == FIRST_LAYER:
            return update * float(factors[1])
        if names[-1] == DEPTH_WEIGHTS:
            # The sums before the halves of layer i have 2i + 2 and 2i + 3 weights.
            own = np.repeat(factors[1:], 4 * np.arange(num_layers) + 5)
            return update * jnp.asarray(own, update.dtype)
        if not _is_below(names, STACKED):
            return update * float(factors[0])
        own = jnp.asarray(factors[-len(update) :], update.dtype)
        return update * own.reshape(-1, *(1,) * (update.ndim - 1))

    def init(params: Params) -> optax.EmptyState:
        named = [(parameter_name(p), x) for p, x in jax.tree_util.tree_leaves_with_path(params)]
        first = any(FIRST_LAYER in names for names, _ in named)
        stacked = [leaf for names, leaf in named if _is_below(names, STACKED)]
        if not stacked or any(len(leaf) != num_layers - first for leaf in stacked):
            raise UserError(
                f"{option}: got {value} with an encoder of another structure, expected one "
                f"stack of {num_layers} layers with separate parameters; set "
                f"--config.optimizer.{option}={off}"
            )
        return optax.EmptyState()

    def update(updates, state, params):
        return jax.tree_util.tree_map_with_path(scale, updates), state

    return optax.GradientTransformation(init, update)


def leading_axes(names: Sequence[str]) -> int:
    """Number of leading axes of a parameter that count layers."""
    return 1 if _is_below(names, STACKED) else 2 if _is_below(names, GROUPED) else 0


def _is_below(names: Sequence[str], stack: tuple[str, str]) -> bool:
    return any(folder.endswith(stack[0]) and name == stack[1] for folder, name in pairwise(names))


def parameter_name(path: tuple) -> list[str]:
    """The names on the path to a parameter."""
    return [entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey)]
