"""Load a trained model: a run, or a folder in Hugging Face's layout.

Commands import this module too, so modules that only some models need are imported in functions.
"""

import os
from typing import TYPE_CHECKING

from bertjax.huggingface.run_cache import find_run

if TYPE_CHECKING:
    from bertjax.inference.model import Model


def load(model: str | os.PathLike, *, precision: str = "") -> "Model":
    """Loads a trained model.

    >>> bert = bertjax.load("runs/bert")
    >>> bert(bert.tokenizer(["a text", ("a", "pair")])).sequence.shape[0]
    2

    Args:
      model: A run of `bertjax pretrain`: RUN (newest checkpoint), RUN@STEP or RUN@best, also
        gs://...; a run of `bertjax finetune` that kept its checkpoints: RUN (the median seed) or
        RUN/seed_N; or a folder that `save_pretrained` of
        transformers or of bertjax wrote, whose import is kept in the cache.
      precision: As `config.model.precision`, such as "float32" or "bfloat16"; "" for that of the
        run.

    Raises:
      UserError: there is no such run, checkpoint or architecture.
    """
    from bertjax.huggingface import exporting
    from bertjax.inference.model import Model

    name = find_run(model)
    return Model(exporting.find(name).origin, name, precision)
