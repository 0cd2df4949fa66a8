"""Write the `README.md` of an exported model: architecture, training, scores."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Card:
    """The contents of a model card.

    Attributes:
      name: Name of the model.
      model_type: Its architecture in transformers.
      class_name: Its class in transformers.
      pipeline_tag: Its task as the hub names it; empty for none.
      parameters: Number of parameters.
      provenance: Provenance of the weights, one table row each.
      scores: Rows of a table, the header first; empty without scores.
      config: Config of the run.
      library: The library that opens the folder: transformers or sentence-transformers.
      remote_code: Whether the class is not in transformers, but in code that belongs in the folder.
    """

    name: str
    model_type: str
    class_name: str
    pipeline_tag: str
    parameters: int
    provenance: Mapping[str, str]
    scores: Sequence[Sequence[str]]
    config: Mapping[str, Any]
    library: str = "transformers"
    remote_code: bool = False

    def text(self) -> str:
        """The card as Markdown, after the metadata that the hub reads."""
        return "\n".join(
            [
                *self._metadata(),
                f"# {self.name}",
                "",
                f"A {self.model_type} model ({self.class_name}) of {self.parameters:,} parameters, "
                "exported from a run of bertjax.",
                "",
                *_table([("", ""), *self.provenance.items()]),
                "",
                *self._scores(),
                "## Use",
                "",
                "```python",
                *self._use(),
                "```",
                "",
                "## Config",
                "",
                "```json",
                json.dumps(self.config, indent=2, ensure_ascii=False),
                "```",
                "",
            ]
        )

    def _use(self) -> list[str]:
        if self.library == "sentence-transformers":
            return [
                "from sentence_transformers import SentenceTransformer",
                "",
                'model = SentenceTransformer("this folder")',
                'vectors = model.encode(["a text", "another text"])',
            ]
        opener, option = self.class_name, ""
        if self.remote_code:
            _, end, head = self.class_name.partition("For")
            opener, option = f"AutoModel{end}{head}", ", trust_remote_code=True"
        return [
            f"from transformers import AutoTokenizer, {opener}",
            "",
            'tokenizer = AutoTokenizer.from_pretrained("this folder")',
            f'model = {opener}.from_pretrained("this folder"{option})',
        ]

    def _metadata(self) -> list[str]:
        tag = self.pipeline_tag
        lines = [f"library_name: {self.library}", "tags:", "- bertjax", f"- {self.model_type}"]
        if self.library == "sentence-transformers":
            lines += ["- sentence-transformers"]
        return ["---", *lines, *([f"pipeline_tag: {tag}"] if tag else []), "---", ""]

    def _scores(self) -> list[str]:
        return ["## Scores", "", *_table(self.scores), ""] if self.scores else []


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    header, *rest = rows
    lines = [header, ["---"] * len(header), *rest]
    return [f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines]
