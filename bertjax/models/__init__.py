"""Models: one file for each distinct computation, which defines `Model`.

`bertjax.models.Bert` is the class `Model` of `bertjax/models/bert.py`, and so on. The case of a
name does not matter, except that all lower case names the file.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    from bertjax import catalog

    modules = {stem.replace("_", ""): stem for stem in catalog.names("models")}
    if name.islower() or name.lower() not in modules:
        raise AttributeError(f"module 'bertjax.models' has no attribute {name!r}")
    return catalog.load("models", modules[name.lower()]).Model
