"""Which of their architectures a run of `models/bert.py` is: ours is one model, theirs are four."""

from collections.abc import Mapping
from typing import Any

_ASSUMED = {"position_offset": 0, "embedding_size": 0, "num_pooler_layers": 1}
"""What a run's config may leave out."""

_REPLACED_TOKENS = {"generator", "rtd"}
"""The objectives of ELECTRA."""


def member(run: Mapping[str, Any]) -> str | None:
    """The `model_type` of theirs, None for none of the four.

    ELECTRA is what has narrow embeddings; of those that have not, what finds replaced tokens, or
    what a task has put ELECTRA's pooler on.
    """
    if run["model"]["name"] != "bert":
        return None
    model = _ASSUMED | run["model"]
    narrow = model["embedding_size"] not in (0, model["hidden_size"])
    segments, later = model["type_vocab_size"] > 0, model["position_offset"] > 0
    if narrow or _finds_replaced_tokens(run, model):
        return "electra" if segments and not later else None
    if not segments:
        return None if later else "distilbert"
    return "roberta" if later else "bert"


def _finds_replaced_tokens(run: Mapping[str, Any], model: Mapping[str, Any]) -> bool:
    if "task" in run and not model["num_pooler_layers"]:
        return run["task"].get("pooler_act") == "gelu"
    return bool(_REPLACED_TOKENS & set(run.get("objectives", ())))
