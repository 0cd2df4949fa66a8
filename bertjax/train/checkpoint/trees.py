"""Parameter trees as named arrays, which checkpoints store, compare and fingerprint.

A name is the path to a leaf, joined by slashes: `params/encoder/embeddings/word/embedding`.
Checkpoints hold these names instead of the classes of an optimizer's state, so that they can be
read without the code that made them.
"""

import hashlib
import struct
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

Nested = dict[str, Any]


def named(tree: PyTree) -> dict[str, Any]:
    """The leaves of a tree by name, in the tree's own order."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def like(tree: PyTree, leaves: Mapping[str, Any]) -> PyTree:
    """A tree of the same structure with other leaves, which are looked up by name."""
    structure = jax.tree_util.tree_structure(tree)
    return jax.tree_util.tree_unflatten(structure, [leaves[name] for name in named(tree)])


def nested(leaves: Mapping[str, Any]) -> Nested:
    """Nested plain dicts from named leaves: `{"a/b": 1}` becomes `{"a": {"b": 1}}`."""
    tree: Nested = {}
    for name, leaf in leaves.items():
        *folders, last = name.split("/")
        branch = tree
        for folder in folders:
            branch = branch.setdefault(folder, {})
        branch[last] = leaf
    return tree


def fingerprint(tree: PyTree) -> str:
    """SHA-256 of a tree's content: each name, type, shape and value, in the order of the names.

    Two runs that ended alike have equal fingerprints, whatever the devices that hold the arrays
    and whatever the containers of the tree are called. Every array must be whole on this host.
    """
    digest = hashlib.sha256()
    for name, leaf in sorted(named(tree).items()):
        array = np.asarray(leaf)
        header = f"{name}\0{array.dtype.name}\0{','.join(map(str, array.shape))}".encode()
        digest.update(struct.pack("<Q", len(header)) + header)
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def num_parameters(tree: PyTree) -> int:
    """How many numbers a tree holds."""
    return sum(int(np.prod(leaf.shape, dtype=np.int64)) for leaf in jax.tree.leaves(tree))
