"""Parameter trees as named arrays, which checkpoints store, compare and fingerprint.

A name is the path to a leaf, joined by slashes: `params/encoder/embeddings/word/embedding`.
Checkpoints use these names instead of the classes of an optimizer's state, so that they can be read
without the code that wrote them.
"""

import hashlib
import struct
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

Nested = dict[str, Any]


def flatten_names(tree: PyTree) -> dict[str, Any]:
    """Flattens a tree to its leaves by name, in the order of the tree."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def unflatten_like(tree: PyTree, leaves: Mapping[str, Any]) -> PyTree:
    """Builds a tree of the same structure with other leaves, given by name."""
    structure = jax.tree_util.tree_structure(tree)
    return jax.tree_util.tree_unflatten(structure, [leaves[name] for name in flatten_names(tree)])


def nest(leaves: Mapping[str, Any]) -> Nested:
    """Converts named leaves to nested dicts: `{"a/b": 1}` becomes `{"a": {"b": 1}}`."""
    tree: Nested = {}
    for name, leaf in leaves.items():
        *folders, last = name.split("/")
        branch = tree
        for folder in folders:
            branch = branch.setdefault(folder, {})
        branch[last] = leaf
    return tree


def fingerprint(tree: PyTree) -> str:
    """SHA-256 of the names, types, shapes and values of a tree, in the order of the names.

    It does not depend on shardings or on the classes of the tree's nodes. Every array must be fully
    addressable from this host.
    """
    digest = hashlib.sha256()
    for name, leaf in sorted(flatten_names(tree).items()):
        array = np.asarray(leaf)
        header = f"{name}\0{array.dtype.name}\0{','.join(map(str, array.shape))}".encode()
        digest.update(struct.pack("<Q", len(header)) + header)
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def num_parameters(tree: PyTree) -> int:
    """Number of elements of all arrays of a tree."""
    return sum(int(np.prod(leaf.shape, dtype=np.int64)) for leaf in jax.tree.leaves(tree))
