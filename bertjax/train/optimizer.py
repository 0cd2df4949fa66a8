"""AdamW and LAMB, with weight decay on matrices alone and clipping by the global norm."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool

from bertjax.constraints import OneOf
from bertjax.errors import UserError, nearest
from bertjax.interfaces import Params

NO_DECAY = ("bias", "scale")
STACKED = ("layers", "block")
"""Parameters below two names that end so carry a leading layer axis (`layers/stack.py`)."""
GROUPED = ("layers", "group")
"""These carry two: groups, and the blocks of a group (`layers/grouped_stack.py`)."""


def decay_mask(params: Params) -> Params:
    """True for parameters that decay: all but biases and the scales of LayerNorm."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: _names(path)[-1] not in NO_DECAY, params
    )


def make(
    name: str,
    *,
    weight_decay: float = 0.01,
    adam_b1: float = 0.9,
    adam_b2: float = 0.999,
    adam_eps: float = 1e-6,
    max_grad_norm: float = 1.0,
    layerwise_decay: float = 1.0,
    num_layers: int = 0,
    frozen_parts: Sequence[str] = (),
) -> optax.GradientTransformation:
    """The way from gradient to direction; the step goes against it by the learning rate.

    Args:
      name: "adamw" (Loshchilov & Hutter 2019) or "lamb" (You et al. 2020).
      weight_decay: Decoupled from the gradient.
      adam_b1: Decay of the first moment.
      adam_b2: Decay of the second moment.
      adam_eps: Added to the root of the second moment.
      max_grad_norm: Longer gradients are scaled down to this norm; 0 clips nothing.
      layerwise_decay: By how much each layer's steps are shorter than those of the layer above.
      num_layers: N, of the stack whose layers these are; asked for by `layerwise_decay`.
      frozen_parts: Parts of the model that are not trained, by their first name: nothing is stored
        of them.

    Raises:
      UserError: an unknown name.
    """
    if name not in OPTIMIZERS:
        raise UserError(f"no optimizer {name!r}: {nearest(name, OPTIMIZERS)}")
    clip = optax.clip_by_global_norm(max_grad_norm) if max_grad_norm else optax.identity()
    adam = optax.scale_by_adam(adam_b1, adam_b2, adam_eps)
    decay = optax.masked(
        add_decayed_weights(weight_decay), decay_mask, mask_compatible_extra_args=True
    )
    last = OPTIMIZERS[name]()
    if layerwise_decay != 1.0:
        last.append(scale_by_depth(layerwise_decay, num_layers))
    return _freeze(frozen_parts, _with_gradient_mask(optax.chain(clip, adam, decay, *last)))


def _freeze(
    frozen_parts: Sequence[str], learned: optax.GradientTransformation
) -> optax.GradientTransformation:
    """The same for all parts but some, whose update is zero."""
    if not frozen_parts:
        return learned

    def of_parts(wanted: Callable[[str], bool]) -> Callable[[Params], Params]:
        return lambda params: {name: wanted(name) for name in params}

    return optax.chain(
        optax.masked(learned, of_parts(lambda name: name not in frozen_parts)),
        optax.masked(optax.set_to_zero(), of_parts(lambda name: name in frozen_parts)),
    )


def _with_gradient_mask(
    chain: optax.GradientTransformationExtraArgs,
) -> optax.GradientTransformation:
    """Hands on, as `learns`, which parameters have a gradient that is not zero everywhere.

    Said by the sums of squares that the gradient's norm needs anyway: a pass over it costs time.
    """

    def update(gradient, state, params):
        learns = jax.tree.map(lambda array: jnp.sum(jnp.square(array)) > 0, gradient)
        return chain.update(gradient, state, params, learns=learns)

    return optax.GradientTransformation(chain.init, update)


def add_decayed_weights(weight_decay: float) -> optax.GradientTransformationExtraArgs:
    """Decoupled decay of every parameter that has a gradient.

    What no loss reaches, such as the pooler where sentences are not classified, stays as it was;
    otherwise it would shrink for a whole run and be worth less to a task than a fresh one.
    """

    def decayed(update: Array, parameter: Array, learns: Bool[Array, ""]) -> Array:
        return update + weight_decay * parameter * learns

    def update(updates, state, params, *, learns, **_):
        return jax.tree.map(decayed, updates, params, learns), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def scale_by_trust_ratio() -> optax.GradientTransformation:
    """LAMB's |parameter| / |update|, one ratio a layer (You et al. 2020, algorithm 2).

    Parameters of a scanned stack hold all layers in one array; each layer gets its own ratio, and
    of groups of layers each block of a group. What
    does not decay keeps its update, as in the published code: biases begin at zero, and a ratio
    that shrinks with the parameter would hold them there.
    """

    def update(updates, state, params):
        return jax.tree_util.tree_map_with_path(_trusted, updates, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _trusted(path: tuple, update: Array, parameter: Array) -> Array:
    names = _names(path)
    if names[-1] in NO_DECAY:
        return update
    leading = 1 if _is_stacked(names) else 2 if _is_stacked(names, GROUPED) else 0
    axes = tuple(range(leading, update.ndim))

    def norm(x):
        return jnp.sqrt(jnp.sum(jnp.square(x), axis=axes, keepdims=True))

    length, step = norm(parameter), norm(update)
    defined = (length > 0) & (step > 0)
    return update * jnp.where(defined, length / jnp.where(defined, step, 1.0), 1.0)


def scale_by_depth(decay: float, num_layers: int) -> optax.GradientTransformation:
    """Shorter steps for lower layers (Clark et al. 2020, appendix B; the published code).

    Of N layers the i-th from below, counted from 1, is scaled by decay ** (N + 2 - i), the
    embeddings by decay ** (N + 2), and what is above the stack, the pooler and heads, not at all.

    Args:
      decay: More than 0 and at most 1.
      num_layers: N.

    Raises:
      UserError: an impossible decay, or an encoder whose layers are not in a stack of their own.
    """
    if not 0 < decay <= 1:
        raise UserError(f"layerwise_decay={decay}: expected more than 0 and at most 1")

    def scaled(path: tuple, update: Array) -> Array:
        names = _names(path)
        if names[0] != "encoder" or "pooler" in names:
            return update
        if not _is_stacked(names):
            return update * decay ** (num_layers + 2)
        powers = num_layers + 2 - jnp.arange(1, num_layers + 1)
        return update * (decay**powers).reshape(-1, *(1,) * (update.ndim - 1))

    def init(params: Params) -> optax.EmptyState:
        paths = jax.tree_util.tree_leaves_with_path(params)
        stacked = [leaf for path, leaf in paths if _is_stacked(_names(path))]
        if not stacked or any(len(leaf) != num_layers for leaf in stacked):
            raise UserError(
                f"layerwise_decay={decay} needs an encoder with one stack of {num_layers} layers "
                "of their own, this one has another: set --config.optimizer.layerwise_decay=1"
            )
        return optax.EmptyState()

    def update(updates, state, params):
        return jax.tree_util.tree_map_with_path(scaled, updates), state

    return optax.GradientTransformation(init, update)


def _is_stacked(names: list[str], stack: tuple[str, str] = STACKED) -> bool:
    """Whether a parameter has the leading axes of a stack."""
    return any(folder.endswith(stack[0]) and name == stack[1] for folder, name in pairwise(names))


def _names(path: tuple) -> list[str]:
    return [entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey)]


OPTIMIZERS: dict[str, Callable[[], list[optax.GradientTransformation]]] = {
    "adamw": lambda: [],
    "lamb": lambda: [scale_by_trust_ratio()],
}

OptimizerName = Annotated[str, OneOf(OPTIMIZERS)]
