"""What is run but never trained: a teacher inside a model, or an encoder that gives features."""

from collections.abc import Callable
from typing import Annotated, Any

import flax.linen as nn
import jax
from jax import lax
from jaxtyping import PyTree

from bertjax.constraints import Text
from bertjax.interfaces import Batch, Encoded, Encoder, Pretrainer

FORWARD = "frozen_forward"
"""Name of the inner program, by which those who count FLOPs know it."""


Teacher = Annotated[Callable[[], Pretrainer], Text()]
"""Makes a teacher; in a config, the text that names its run."""


class Frozen(nn.Module):
    """Its parameters lie in the collection "frozen": no gradient, optimizer or checkpoint sees it.

    Attributes:
      make: Makes the module; it belongs to nobody (`parent=None`).
    """

    make: Callable[[], nn.Module]

    @nn.compact
    def __call__(self, method: Callable, *arguments: Any) -> PyTree:
        """`method(module, *arguments)`."""
        module = self.make()

        def draw() -> PyTree:
            return module.init(jax.random.key(0), *arguments, method=method)["params"]

        def forward(params: PyTree, *arguments: Any) -> PyTree:
            return lax.stop_gradient(module.apply({"params": params}, *arguments, method=method))

        forward.__name__ = FORWARD
        params = self.variable("frozen", "params", draw).value
        return jax.jit(forward)(params, *arguments)


def features(encoder: Encoder, batch: Batch, *, train: bool) -> Encoded:
    """What an encoder makes of a batch, without dropout, and so that no gradient flows to it.

    See `interfaces.Pretrainer.encode`. Unlike a teacher's, its parameters lie where an encoder's
    lie, so that its checkpoints are whole models; the optimizer has to leave them out.
    """

    def forward(encoder: Encoder, batch: Batch) -> Encoded:
        return encoder(batch, train=False)

    forward.__name__ = FORWARD
    return lax.stop_gradient(nn.jit(forward)(encoder, batch))
