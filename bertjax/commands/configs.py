"""List the built-in configs, or describe one: its recipe, sizes and costs."""

import ast
import pathlib

from bertjax import catalog
from bertjax.commands import _flags
from bertjax.errors import UserError, nearest

GROUP = "Train"

EPILOG = """\
examples:
  bertjax configs
  bertjax configs bert
  bertjax pretrain --config bert:base --workdir runs/bert_base

A config is named by its file, with an argument after a colon: bert:base is configs/bert.py:base.
--config accepts the name, the path configs/bert.py:base, or the path of a file of your own, which
may `from configs import common`.
"""


def main(argv: list[str]) -> None:
    """Prints a line for each config, or the description of one."""
    arguments = parser().parse_args(argv)
    described = {
        name: text for name, path in catalog.config_files().items() if (text := _describe(path))
    }
    if arguments.name:
        name = arguments.name.partition(":")[0]
        if name not in described:
            raise UserError(f"no config {name!r}: {nearest(name, described)}")
        print(described[name])
        return
    width = max(map(len, described))
    for name, text in described.items():
        print(f"{name:<{width}}  {text.splitlines()[0]}")


def _describe(path: pathlib.Path) -> str:
    """Returns the docstring of a config file; "" for a module that config files share."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return (ast.get_docstring(tree) or "") if "get_config" in functions else ""


def parser() -> _flags.Parser:
    """Returns the parser of the command line."""
    parser = _flags.Parser("bertjax configs", __doc__, EPILOG)
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="a config to describe")
    return parser
