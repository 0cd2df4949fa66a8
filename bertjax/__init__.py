"""bertjax: pretraining of language encoders in JAX and Flax, TPU first."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_EXPORTS = {
    "Model": "bertjax.inference.model",
    "load": "bertjax.inference.loader",
    "load_config": "bertjax.config",
    "pretrain": "bertjax.runs.pretrain",
    "finetune": "bertjax.runs.finetune",
    "prepare": "bertjax.corpus.prepare",
    "evaluate": "bertjax.inference.evaluation",
    "models": "bertjax.models",
    "UserError": "bertjax.errors",
}
"""Modules of the public names, imported at first use: `import bertjax` imports no JAX."""

__all__ = ["__version__", *_EXPORTS]

if TYPE_CHECKING:
    from bertjax import models as models
    from bertjax.config import load_config as load_config
    from bertjax.corpus.prepare import prepare as prepare
    from bertjax.errors import UserError as UserError
    from bertjax.inference.evaluation import evaluate as evaluate
    from bertjax.inference.loader import load as load
    from bertjax.inference.model import Model as Model
    from bertjax.runs.finetune import finetune as finetune
    from bertjax.runs.pretrain import pretrain as pretrain


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'bertjax' has no attribute {name!r}")
    if "jax" not in sys.modules:
        importlib.import_module("bertjax.runtime.host").skip_absent_tpus()
    module = importlib.import_module(_EXPORTS[name])
    return module if name == "models" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])
