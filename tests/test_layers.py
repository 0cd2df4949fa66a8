"""Package structure: layers and their imports, where JAX and Flax may be imported, file sizes."""

import ast
import pathlib
import re
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "bertjax").rglob("*.py"))

LAYERS = (
    ("__init__", "errors"),
    ("constraints", "interfaces"),
    ("pretrainer",),
    ("io", "metrics", "layers", "decoding", "catalog"),
    ("tokenizers", "runtime", "models", "objectives"),
    ("corpus", "train"),
    ("data",),
    ("tasks",),
    ("validation",),
    ("overrides",),
    ("config",),
    ("build",),
    ("pretrained",),
    ("huggingface",),
    ("runs",),
    ("sweeps",),
    ("profiling", "reports"),
    ("inference",),
    ("commands",),
    ("cli",),
    ("__main__",),
)
"""Folders and files of bertjax/, lowest layer first. A module imports from lower layers and from
its own folder."""
LAYER = {part: number for number, parts in enumerate(LAYERS) for part in parts}

MAY_IMPORT_FLAX = {"layers", "models", "objectives", "tasks", "pretrainer"}
MAY_IMPORT_FLAX_TOO = {"train/state.py", "train/sharding.py"}


def part(path: pathlib.Path) -> str:
    """The top-level folder or file of bertjax/ that contains a file."""
    first = path.relative_to(ROOT / "bertjax").parts[0]
    return first.removesuffix(".py")


def imports(tree: ast.AST) -> Iterator[str]:
    """Dotted names of all modules that a file may import, inside functions as well."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: write imports in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def parse(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_every_folder_and_file_has_a_layer():
    assert {part(path) for path in FILES} == set(LAYER)


# bertjax/__init__.py, which is left out, imports the public names at first use.
@pytest.mark.parametrize("path", FILES[1:], ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_from_lower_layers_and_its_own_folder(path):
    own = part(path)
    for name in imports(parse(path)):
        if name.startswith("bertjax."):
            other = name.split(".")[1]
            layer = LAYER.get(other, 0)  # a name that bertjax/__init__.py itself defines
            assert layer < LAYER[own] or (other == own and path.parent.name != "bertjax"), name


def test_pretraining_imports_few_modules():
    """Counts modules that are reached from imports at the top of modules (decision 30)."""
    dotted = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in FILES}
    paths = {name.removesuffix(".__init__"): path for name, path in dotted.items()}
    found, pending = set(), ["bertjax.runs.pretrain"]
    while pending:
        statements = parse(paths[pending.pop()]).body
        top = [each for each in statements if isinstance(each, ast.Import | ast.ImportFrom)]
        for name in imports(ast.Module(top, [])):
            module = name if name in paths else name.rpartition(".")[0]
            if module in paths.keys() - found - {"bertjax"}:
                found.add(module)
                pending.append(module)
    assert len(found) <= 75


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_jax_and_flax_are_imported_only_in_their_layers(path):
    names = set(imports(parse(path)))
    packages = {name.split(".")[0] for name in names}
    if part(path) in ("data", "errors", "catalog", "cli", "config", "overrides", "constraints"):
        assert not packages & {"jax", "flax", "optax", "orbax"}
        assert not any(name.startswith("bertjax.pretrainer") for name in names)
    if "flax" in packages:
        inside = str(path.relative_to(ROOT / "bertjax"))
        assert part(path) in MAY_IMPORT_FLAX or inside in MAY_IMPORT_FLAX_TOO
    assert "jax.pmap" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_small_and_are_well_named(path):
    assert path.stem not in ("utils", "helpers", "misc", "common")
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno < 80, node.name


# inspect.py reads any config.json, also of older versions.
READ_CONFIGS = [
    p
    for p in FILES
    if part(p) not in ("build", "corpus", "data", "tokenizers") and p.stem != "inspect"
]


@pytest.mark.parametrize("path", READ_CONFIGS, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_build_fills_gaps_in_a_config(path):
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Call) and len(node.args) == 2:
            assert not re.match(r"config\b.*\.get$", ast.unparse(node.func)), f"line {node.lineno}"
