"""Load a trained model: a run, or a folder in Hugging Face's layout.

Commands import this module too, so modules that only some models need are imported in functions.
"""

import hashlib
import os
import pathlib
from typing import TYPE_CHECKING

import filelock

from bertjax.io import copies, storage
from bertjax.io.files import cache_directory, read_json

if TYPE_CHECKING:
    from bertjax.inference.model import Model

_CONFIG, _RESULTS = "config.json", "results.json"


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


def find_run(model: str | os.PathLike) -> str:
    """Returns the name of a run; a folder in Hugging Face's layout is imported into the cache.

    Of a fine-tuning run it is the name of the seed with the median dev score.

    Raises:
      UserError: the architecture of the folder is unknown.
    """
    folder = storage.to_path(str(model))
    if (folder / _CONFIG).is_file() and "model_type" in read_json(folder / _CONFIG):
        return str(_import(copies.local_copy(folder)))
    if (folder / _RESULTS).is_file():
        return f"{model}/seed_{read_json(folder / _RESULTS)['predictions']['seed']}"
    return str(model)


def _import(folder: pathlib.Path) -> pathlib.Path:
    """Imports a Hugging Face folder as a run in the cache; the same files are imported once."""
    from bertjax.huggingface import importing

    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):  # sentence-transformers has folders of modules
        if path.is_file():
            stat = path.stat()
            digest.update(f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    run = cache_directory() / "imported" / f"{folder.resolve().name}-{digest.hexdigest()[:16]}"
    run.parent.mkdir(parents=True, exist_ok=True)
    # Processes that load the same folder at the same time import it once.
    with filelock.FileLock(f"{run}.lock"):
        if not (run / _CONFIG).is_file():
            importing.write(importing.read(folder), run)
    return run
