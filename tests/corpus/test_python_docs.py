"""The built-in corpus of Python's documentation and docstrings."""

import os
import subprocess
import sys

import pytest

from bertjax.corpus import python_docs
from bertjax.corpus.python_docs import unwrap


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("One line.", "One line."),
        (
            "A paragraph that\nis wrapped.\n\nAnother\none.",
            "A paragraph that is wrapped.|Another one.",
        ),
        (
            "Args:\n  first: a number\n    that continues\n  second (int, optional): two\n",
            "Args:|first: a number that continues|second (int, optional): two",
        ),
        ("x : int\n    What x is\n    in full.\ny : int", "x : int|What x is in full.|y : int"),
        ("- one item\n  of two lines\n- two\n\n1. three", "- one item of two lines|- two|1. three"),
        ("Title\n=====\nText of\nit.", "Title|Text of it."),
        ("Use:\n>>> f(1)\n1\n>>> g(\n... 2)\ntext", "Use:|>>> f(1)|1|>>> g(|... 2)|text"),
    ],
)
def test_paragraphs_are_joined_to_lines(docstring, expected):
    assert unwrap(docstring).split("\n") == expected.split("|")


MODULE_A = '''"""Module A."""
raise RuntimeError("imported")
def f():
    """Does f."""
    def inner():
        """Inner."""
class C:
    r"""A \\d class."""
    async def m(self):
        """Does m
        well."""
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Three modules that fail when imported, and one with a syntax error."""
    (tmp_path / "a.py").write_text(MODULE_A)
    (tmp_path / "b.py").write_text('def f():\n    """Does f."""\n')
    (tmp_path / "c.py").write_text('"""Module C."""\ndef f():\n    """Does f."""\nx = "\\d"\n')
    (tmp_path / "d.py").write_text("def:\n")
    monkeypatch.setattr(
        python_docs, "_list_modules", lambda: [str(tmp_path / f"{name}.py") for name in "abcd"]
    )
    monkeypatch.setattr(python_docs, "_topics", lambda: iter(["A topic.", "Module C."]))
    python_docs.read_documents.cache_clear()
    yield
    python_docs.read_documents.cache_clear()


def test_a_module_is_one_document_without_earlier_docstrings(package):
    assert python_docs.read_documents() == (
        "A topic.",
        "Module C.",
        "Module A.\nDoes f.\nInner.\nA \\d class.\nDoes m well.",
    )


@pytest.mark.slow
def test_the_built_in_corpus_is_large_and_has_no_duplicates():
    found = python_docs.read_documents()
    assert len(found) > 1500
    assert len(set(found)) == len(found)
    assert 8e6 < sum(map(len, found)) < 30e6
    assert any("The for statement is used to iterate" in text.replace('"', "") for text in found)
    assert any("Adam" in text for text in found)


def test_hash_seeds_do_not_change_the_order(root):
    """Sets are never iterated over: another seed would give another order."""
    script = (
        "from bertjax.corpus import python_docs; print(*python_docs._list_modules(), sep='\\n')"
    )
    orders = {
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONPATH": str(root), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(orders) == 1
    modules = orders.pop().splitlines()
    assert any(path.endswith("asyncio/tasks.py") for path in modules)
    assert not any("site-packages/" in path and "/tests/" in path for path in modules)
