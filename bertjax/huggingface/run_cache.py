"""Resolve the model that a user names: a run, or a Hugging Face folder imported into the cache.

find_run  model -> the name of a run; a Hugging Face folder is imported, once, into the cache
resolve   model -> its checkpoint and config

Commands import this module too, so modules that only some models need are imported in functions.
"""

import hashlib
import os
import pathlib

import filelock

from bertjax.errors import UserError
from bertjax.io import copies, storage
from bertjax.io.files import cache_directory, read_json
from bertjax.train.checkpoint import folder as checkpoint_folder
from bertjax.train.checkpoint import origin
from bertjax.train.checkpoint.origin import FRESH, PretrainedSource

_CONFIG, _RESULTS = "config.json", "results.json"
_FORMAT = b"prompts"
"""Another value than that of a release whose imports record less of a folder."""


def resolve(model: str) -> PretrainedSource:
    """Resolves RUN, RUN@STEP, RUN@best, a Hugging Face folder, or `random:` before one.

    Raises:
      UserError: there is no such run or checkpoint, it is damaged, or the architecture is unknown.
    """
    if not isinstance(model, str):
        raise UserError(
            f"init: got {model!r}, expected a run, such as 'runs/bert', or a Hugging Face folder, "
            "as text"
        )
    prefix = FRESH if model.startswith(FRESH) else ""
    return origin.resolve(prefix + find_run(model.removeprefix(prefix), trained=not prefix))


def find_run(model: str | os.PathLike, *, trained: bool = True) -> str:
    """Returns the name of a run; a folder in Hugging Face's layout is imported into the cache.

    Of a fine-tuning run it is the name of the seed with the median dev score.

    Args:
      model: RUN, RUN@STEP, RUN@best or a Hugging Face folder.
      trained: Whether the run must have a checkpoint.

    Raises:
      UserError: the architecture of the folder is unknown, or a fine-tuning that keeps its
        checkpoints has none yet.
    """
    folder = storage.to_path(str(model))
    if (folder / _CONFIG).is_file() and origin.is_released(read_json(folder / _CONFIG)):
        return str(_import(copies.local_copy(folder)))
    if (folder / _RESULTS).is_file():
        return f"{model}/seed_{read_json(folder / _RESULTS)['predictions']['seed']}"
    if trained:
        _check_progress(str(model))
    return str(model)


def _check_progress(model: str) -> None:
    """Refuses a fine-tuning, or a seed of it, that was stopped before its first checkpoint."""
    folder = storage.to_path(model.partition("@")[0] or model)
    is_seed = folder.name.startswith("seed_")
    run = folder.parent if is_seed else folder
    config = read_json(run / _CONFIG) if (run / _CONFIG).is_file() else {}
    if "task" not in config or not config.get("keep_checkpoints"):
        return
    # An imported model has a checkpoint, but no seeds.
    folders = [folder] if is_seed else [run, *run.glob("seed_*")]
    if not any(checkpoint_folder.steps(each / "checkpoints") for each in folders):
        raise UserError(
            f"{folder} is unfinished: it has no complete checkpoint yet; run its command of "
            "bertjax finetune again, which resumes it"
        )


def _import(folder: pathlib.Path) -> pathlib.Path:
    """Imports a Hugging Face folder as a run in the cache; the same files are imported once."""
    from bertjax.huggingface import importing

    digest = hashlib.sha256(_FORMAT)
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
