"""Griffe extension of the site: doctests in docstrings are shown as code blocks."""

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"(?:^>>> .*\n?(?:^(?!>>> )\S.*\n?|^\.\.\. .*\n?)*)+", re.MULTILINE)


class DocstringExamples(griffe.Extension):
    """Fences doctests, which Markdown would take for quotations."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrites the docstring of an object."""
        if obj.docstring and ">>> " in obj.docstring.value:
            obj.docstring.value = _DOCTEST.sub(
                lambda match: f"```python\n{match[0].rstrip()}\n```\n", obj.docstring.value
            )
