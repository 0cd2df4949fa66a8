"""README and documentation: links, commands, options and configs exist, and the site builds."""

import importlib.util
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from bertjax import catalog

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COPIED = {"changelog.md", "contributing.md", "experiments.md"}


def load(path):
    """Import a file that is not in a package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def build_docs():
    return load(ROOT / "tools" / "build_docs.py")


@pytest.fixture(scope="module")
def parsers():
    """The parser of every verb, by name."""
    return {
        name.replace("_", "-"): catalog.load("commands", name).parser()
        for name in catalog.names("commands")
    }


def commands(page):
    """Yield the words of every `bertjax VERB ...` in code: blocks of shell, and inline code."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```(?:sh|bash)\n(.*?)^```", text, re.S | re.M)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    prose = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    lines += re.findall(r"`(bertjax [^`]+)`", prose)
    for line in lines:
        for command in re.findall(r"(?:^|\| )(?:tools/run|bertjax) (.+)", line):
            words = shlex.split(command, comments=True)
            end = next((n for n, word in enumerate(words) if word in ("|", ">", "&&", "<")), None)
            own = words[:end]
            yield own
            if own[0] == "launch" and "--" in own:
                yield own[own.index("--") + 1 :]


def test_relative_links_lead_to_files(build_docs):
    generated = {ROOT / "docs" / page for page in build_docs.generated_pages()}
    missing = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
        for link in re.findall(r"\]\((?!https?:|mailto:|#|data:)([^)\s#]+)", text):
            target = pathlib.Path(os.path.normpath(page.parent / link))
            if not target.exists() and target not in generated:
                missing.append(f"{page.relative_to(ROOT)}: {link}")
    assert not missing


def describe_unknown(words, parsers, build_docs):
    """Return the unknown verb or option of a command, or an empty string."""
    verb, *rest = words
    if verb in ("VERB", "--help", "--version"):
        return ""
    if verb not in parsers:
        return f"verb {verb}"
    parser = parsers[verb]
    subcommands = build_docs.subcommands(parser)
    if subcommands and rest and not rest[0].startswith("-"):
        if rest[0] not in subcommands:
            return f"command {verb} {rest[0]}"
        if verb == "launch" and rest[0] != "local":
            return ""  # a shell script, whose options are in its comment
        parser = subcommands[rest[0]]
    own = rest[: rest.index("--")] if "--" in rest else rest
    options = [word.partition("=")[0] for word in own if word.startswith("--")]
    for option in options:
        name = "--" + option[2:].replace("-", "_")
        if not name.startswith("--config.") and name not in parser._option_string_actions:
            return f"option {option} of {verb}"
    return ""


def test_commands_and_options_exist(parsers, build_docs):
    unknown = []
    count = 0
    for page in PAGES:
        for words in commands(page):
            count += 1
            if found := describe_unknown(words, parsers, build_docs):
                unknown.append(f"{page.relative_to(ROOT)}: {found}: {' '.join(words)}")
    assert not unknown
    assert count > 100


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("pretrain --config bert:base --config.seed=1", ""),
        ("pretrian --config bert:base", "verb pretrian"),
        ("tokenizer learn --input x", "command tokenizer learn"),
        ("tokenizer train --input x --out y", "option --out of tokenizer"),
        ("embed --max-length 5", ""),
        ("launch slurm --partition gpu -- pretrain", ""),
        ("launch local --nodes 2 -- pretrain", "option --nodes of launch"),
    ],
)
def test_unknown_commands_and_options_are_found(parsers, build_docs, command, found):
    assert describe_unknown(command.split(), parsers, build_docs) == found


def test_configs_exist():
    known = catalog.config_files()
    unknown = []
    for page in PAGES:
        for name in re.findall(r"--config[ =]([\w./]+)", page.read_text(encoding="utf-8")):
            path = pathlib.Path(name.rstrip("."))
            if path.suffix == ".py":
                if not (ROOT / path).is_file() and not path.stem.startswith("my_"):
                    unknown.append(f"{page.relative_to(ROOT)}: {name}")
            elif path.name.isupper():
                continue  # a placeholder, such as CONFIG
            elif name.rstrip(".") not in known:
                unknown.append(f"{page.relative_to(ROOT)}: {name}")
    assert not unknown


def test_every_verb_and_config_has_a_page(build_docs, parsers):
    pages = build_docs.generated_pages()
    assert {page for page in pages if page.startswith("commands/")} == {
        f"commands/{verb}.md" for verb in parsers
    }
    for verb, parser in parsers.items():
        page = pages[f"commands/{verb}.md"]
        for name in build_docs.subcommands(parser):
            assert f"\n## bertjax {verb} {name}\n" in page
    assert pages["configs/quickstart.md"].startswith("# quickstart\n\nQuickstart: a BERT-tiny")
    assert "configs/common.md" not in pages
    assert set(pages) >= COPIED


def test_help_becomes_markdown(build_docs):
    parser = build_docs.argparse.ArgumentParser(
        prog="bertjax toy",
        description="Do it.",
        epilog="examples:\n  bertjax toy *.txt\n\nnames:\n  a  first\n\nUse --size=2, or [MASK].",
        formatter_class=build_docs.argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--size", metavar="N", type=int, default=3, help="a_b <c> (%(default)s)")
    parser.add_argument("--hidden", help=build_docs.argparse.SUPPRESS)
    page = build_docs.command_page(parser)
    assert page.startswith("# bertjax toy\n\nDo it.\n\n```text\nbertjax toy [-h] [--size N]\n```\n")
    assert "| `--size N` | a\\_b &lt;c&gt; (3) |" in page
    assert "hidden" not in page
    assert "## Examples\n\n```sh\nbertjax toy *.txt\n```\n" in page
    assert "## Names\n\n```text\na  first\n```\n" in page
    assert "Use `--size=2`, or \\[MASK\\]." in page


def test_options_of_inline_code_are_not_broken_over_lines(build_docs):
    block = "<pre><span></span><code>bertjax --help</code></pre>"
    assert build_docs.on_page_content(f"{block}<code>--config.seed=1 -h</code>") == (
        f'{block}<code><span class="option">--config.seed</span>=1 -h</code>'
    )


def test_patterns_of_the_nav_are_expanded(build_docs):
    nav = [{"A": ["a/one.md", "a/*"]}, {"B": [{"C": ["c/*"]}]}, "d.md"]
    pages = ["a/index.md", "a/one.md", "a/three.md", "d.md", "a/two.md"]
    expanded = build_docs._expand(nav, sorted(pages))
    assert expanded == [{"A": ["a/one.md", "a/index.md", "a/three.md", "a/two.md"]}, "d.md"]


def test_a_notebook_becomes_markdown(build_docs, tmp_path):
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n"]},
        {
            "cell_type": "code",
            "source": ["1 + 1"],
            "outputs": [
                {"output_type": "stream", "text": ["\x1b[1m2\x1b[0m\n"]},
                {"output_type": "display_data", "data": {"image/png": "aGk=\n"}},
            ],
        },
    ]
    path = tmp_path / "start.ipynb"
    path.write_text(build_docs.json.dumps({"cells": cells}))
    assert build_docs.notebook_page(path) == (
        "# Title\n\n```python\n1 + 1\n```\n\n```text\n2\n```\n\n"
        "![output](data:image/png;base64,aGk=)\n\n[Download the notebook](start.ipynb)\n"
    )


def test_the_picture_shows_the_committed_points():
    draw = load(ROOT / "docs" / "images" / "draw_quickstart.py")
    points = draw.json.loads(draw.POINTS.read_text())
    assert (draw.FOLDER / "quickstart.svg").read_text() == draw.draw(points)


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path):
    for package in ("mkdocs", "material", "mkdocstrings_handlers.python"):
        pytest.importorskip(package, reason="the site needs the dependency group docs")
    search = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": search, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for page in ("index", "commands/pretrain/index", "configs/bert/index", "api/models/index"):
        assert (tmp_path / "site" / f"{page}.html").is_file()
    api = (tmp_path / "site" / "api" / "index.html").read_text(encoding="utf-8")
    assert "Loads a trained model." in api
