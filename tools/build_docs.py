"""MkDocs hook: pages generated from the package at build time, none of which is committed.

    pip install -e . --group docs
    mkdocs serve                 # or: mkdocs build --strict

- `commands/VERB.md`: a page per verb, from the argparse parser of `bertjax/commands/VERB.py`, with
  a section per subcommand;
- `configs/NAME.md`: a page per file of `configs/`, from its docstring;
- `api/FOLDER.md`: the modules of a folder, for mkdocstrings;
- `notebooks/NAME.md`: the cells and stored outputs of `docs/notebooks/NAME.ipynb`;
- the change log, the experiments and the contributing guide of the repository, with their plots.

In the nav of `mkdocs.yml`, an entry `commands/*` stands for all pages of that folder.
"""

import argparse
import ast
import fnmatch
import html
import json
import os
import pathlib
import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from bertjax import catalog

ROOT = pathlib.Path(__file__).resolve().parents[1]
HELP_WIDTH = 90

COPIED = {
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "experiments.md": "experiments/LOG.md",
}
"""Page -> file of the repository."""

API = {
    "models": ("Models", "bertjax.models", "One file per architecture, with its published fields."),
    "objectives": ("Objectives", "bertjax.objectives", "One file per pretraining objective."),
    "layers": ("Layers", "bertjax.layers", "Linen modules and functions that models share."),
    "optimizers": ("Optimizers", "bertjax.train.optimizers", "`config.optimizer.name`."),
    "schedules": ("Schedules", "bertjax.train.schedules", "`config.optimizer.schedule`."),
    "formats": ("Example formats", "bertjax.data.formats", "`config.data.format`."),
    "metrics": ("Metrics", "bertjax.metrics", "Scores of the evaluation tasks."),
}
"""Page -> title, package and introduction; the modules of the package are its contents."""


def on_config(config: Any) -> Any:
    """Replaces patterns in the nav by the pages that match them."""
    committed = [
        path.relative_to(config.docs_dir).as_posix()
        for path in pathlib.Path(config.docs_dir).rglob("*")
        if path.suffix == ".md"
    ]
    config.nav = _expand(config.nav, sorted({*committed, *generated_pages()}))
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """Adds the generated pages, and the plots that copied pages link, to the site."""
    from mkdocs.structure.files import File

    for uri, content in generated_pages().items():
        files.append(File.generated(config, uri, content=content))
    for source in map(pathlib.PurePath, COPIED.values()):
        text = (ROOT / source).read_text(encoding="utf-8")
        for plot in sorted(set(re.findall(r"\]\(([\w/]+\.png)\)", text))):
            path = str(ROOT / source.parent / plot)
            files.append(File.generated(config, plot, abs_src_path=path))
    return files


def on_page_content(content: str, **_: Any) -> str:
    """Keeps options of inline code on one line: browsers break lines after hyphens."""

    def mark(code: re.Match) -> str:
        return re.sub(r"--[\w.]+", r'<span class="option">\g<0></span>', code[0])

    # The code of a block follows an empty span.
    return re.sub(r"(?<!</span>)<code>[^<]*</code>", mark, content)


def generated_pages() -> dict[str, str]:
    """Returns the Markdown of all generated pages by path."""
    pages = {}
    for module in catalog.names("commands"):
        verb = module.replace("_", "-")
        pages[f"commands/{verb}.md"] = command_page(catalog.load("commands", module).parser())
    for name, path in catalog.config_files().items():
        if text := _config_docstring(path):
            pages[f"configs/{name}.md"] = config_page(name, text)
    for page, (title, package, introduction) in API.items():
        pages[f"api/{page}.md"] = api_page(title, package, introduction)
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        pages[f"notebooks/{path.stem}.md"] = notebook_page(path)
    for page, source in COPIED.items():
        pages[page] = (ROOT / source).read_text(encoding="utf-8")
    return pages


def _expand(nav: Any, pages: list[str]) -> Any:
    """Replaces every `folder/*` of a nav by its pages, the index first; drops empty sections."""
    if isinstance(nav, dict):
        return {title: _expand(entry, pages) for title, entry in nav.items()}
    if isinstance(nav, str):
        return nav
    found: list[Any] = []
    for entry in nav:
        if isinstance(entry, str) and "*" in entry:
            matches = [page for page in pages if fnmatch.fnmatch(page, entry) and page not in nav]
            indices = [page for page in matches if pathlib.PurePath(page).stem == "index"]
            found += [*indices, *(page for page in matches if page not in indices)]
        elif (expanded := _expand(entry, pages)) and [*_leaves(expanded)]:
            found.append(expanded)
    return found


def _leaves(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from _leaves(entry)


def command_page(parser: argparse.ArgumentParser) -> str:
    """Returns the page of a verb: usage, options and examples, for each of its subcommands."""
    os.environ["COLUMNS"] = str(HELP_WIDTH)  # of argparse's usage lines
    commands = subcommands(parser)
    lines = [*_described(parser, level=1)]
    for command in commands.values():
        lines += _described(command, level=2)
    return "\n".join(lines) + "\n"


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Returns the parsers of the subcommands of a parser by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _described(parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    yield from ("#" * level + f" {parser.prog}", "")
    yield from (_prose(parser.description or ""), "")
    usage = re.sub(r"(?m)^(usage: | {7})", "", parser.format_usage()).strip()
    yield from ("```text", usage, "```", "")
    if not subcommands(parser):
        for group in parser._action_groups:
            yield from _options(parser, group)
        yield from _epilog(parser.epilog or "", level + 1)


def _options(parser: argparse.ArgumentParser, group: argparse._ArgumentGroup) -> Iterator[str]:
    formatter = parser._get_formatter()
    rows = []
    for action in group._group_actions:
        if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
            continue
        name = formatter._format_action_invocation(action)
        text = formatter._expand_help(action) if action.help else ""
        required = "**Required.** " if action.required and action.option_strings else ""
        rows.append(f"| `{name}` | {required}{_prose(text)} |")
    if rows:
        title = (group.title or "options").capitalize()
        yield from (f"| {title} | |", "|---|---|", *rows, "")


def _epilog(epilog: str, level: int) -> Iterator[str]:
    """Yields an epilog in Markdown: sections such as "examples:", and paragraphs."""
    for block in _blocks(epilog):
        first, _, rest = block.partition("\n")
        if _is_title(first) and rest.strip():
            language = "sh" if first == "examples:" else "text"
            is_section = len(first.split()) <= 3
            title = "#" * level + f" {first[:-1].capitalize()}" if is_section else _prose(first)
            yield from (title, "")
            yield from (f"```{language}", textwrap.dedent(rest).rstrip(), "```", "")
        elif re.search(r"\S {2,}\S", block) or block.startswith("  "):
            language = "sh" if block.lstrip().startswith("bertjax ") else "text"
            yield from (f"```{language}", textwrap.dedent(block).rstrip(), "```", "")
        else:
            yield from (_prose(block), "")


def _blocks(text: str) -> Iterator[str]:
    """Splits at blank lines; indented blocks after a blank line belong to the block before."""
    block = ""
    for part in re.split(r"\n\s*\n", text.strip("\n")):
        if block and part.startswith("  ") and _is_title(block.partition("\n")[0]):
            block += "\n\n" + part
            continue
        if block:
            yield block
        block = part
    if block:
        yield block


def _is_title(line: str) -> bool:
    return re.fullmatch(r"[\w -]+:", line) is not None


def _prose(text: str) -> str:
    """Converts plain text to Markdown: options become code, other special characters text."""
    code = r"(`[^`]+`|(?<!\S)--\w[\w.]*\w(?:=[^\s,;]+)?)"
    found = []
    for part in re.split(code, " ".join(text.split())):
        if part.startswith("`"):
            found.append(part)
        elif re.fullmatch(code, part):
            found.append(f"`{part}`")
        else:
            found.append(re.sub(r"([\\*_\[\]|])", r"\\\1", html.escape(part, quote=False)))
    return "".join(found)


def config_page(name: str, docstring: str) -> str:
    """Returns the page of a config family."""
    title, _, rest = docstring.partition("\n")
    sizes = title.rstrip(".").replace("configs/", "").replace(".py", "")
    lines = [f"# {name}", "", _prose(sizes) + ".", "", *_paragraphs(rest)]
    return "\n".join(lines) + "\n"


def _paragraphs(text: str) -> Iterator[str]:
    """Yields the paragraphs of a docstring; commands and tables, which are indented, as code."""
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        if block.startswith("    "):
            language = (
                "sh" if block.lstrip().startswith(("bertjax ", "python ", "pip ")) else "text"
            )
            yield from (f"```{language}", textwrap.dedent(block).rstrip(), "```", "")
        else:
            yield from (_prose(block), "")


def _config_docstring(path: pathlib.Path) -> str:
    """Returns the docstring of a config file; "" for a module that config files share."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    is_config = any(isinstance(n, ast.FunctionDef) and n.name == "get_config" for n in tree.body)
    return (ast.get_docstring(tree) or "") if is_config else ""


def api_page(title: str, package: str, introduction: str) -> str:
    """Returns the page of a package: a mkdocstrings directive for each of its modules."""
    folder = package.removeprefix("bertjax.").replace(".", "/")
    return "\n".join([f"# {title}", "", introduction, "", *_directives(package, folder)]) + "\n"


def _directives(package: str, folder: str) -> Iterable[str]:
    for name in catalog.names(folder):
        yield from (f"## {name}", "", f"::: {package}.{name}", "")


def notebook_page(path: pathlib.Path) -> str:
    """Returns a notebook in Markdown, with its stored outputs: text and PNG images."""
    lines = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"]).rstrip()
        if cell["cell_type"] == "markdown":
            lines += [source, ""]
        elif cell["cell_type"] == "code" and source:
            lines += ["```python", source, "```", ""]
            for output in cell["outputs"]:
                lines += _output(output)
    lines.append(f"[Download the notebook]({path.name})")
    return "\n".join(lines) + "\n"


def _output(output: dict[str, Any]) -> list[str]:
    data = output.get("data", {})
    if image := data.get("image/png"):
        return [f"![output](data:image/png;base64,{''.join(image).replace(chr(10), '')})", ""]
    text = "".join(output.get("text") or data.get("text/plain") or output.get("traceback", ()))
    plain = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text).rstrip()  # without colours of terminals
    return ["```text", plain, "```", ""] if plain else []
