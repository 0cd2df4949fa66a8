"""ELECTRA (`ElectraModel` and its heads): BERT with factorised embeddings and without a pooler.

In transformers it is one of two models: the discriminator with a head for replaced token detection,
or the generator with a masked LM head. An import of either is not combined with the other to a
pretraining run.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from bertjax.errors import UserError
from bertjax.huggingface import config_words
from bertjax.huggingface.architectures import bert
from bertjax.huggingface.config_words import check_fixed, rename
from bertjax.huggingface.name_map import TOKEN_HEADS, ArrayMap, dense, norm
from bertjax.objectives.generator import Objective as Generator
from bertjax.objectives.generator import generator_fields

PREFIX = "electra"

CLASSES = {
    (): "ElectraModel",
    ("mlm",): "ElectraForMaskedLM",
    ("rtd",): "ElectraForPreTraining",
    ("glue",): "ElectraForSequenceClassification",
    ("multiple_choice",): "ElectraForMultipleChoice",
    ("squad",): "ElectraForQuestionAnswering",
    ("ner",): "ElectraForTokenClassification",
}

CLASSIFIER_DROPOUT = {
    "glue": "classifier_dropout",
    "multiple_choice": "summary_last_dropout",
    "ner": "classifier_dropout",
}

CLASSIFIER_ACT = "gelu"

TIED_ARRAYS = {
    "generator_lm_head.weight": "electra.embeddings.word_embeddings.weight",
}

HEAD_ACT = {"mlm": "gelu"}

NOT_EXPORTED = {"generator": "it is a separate model, which --generator exports"}

WORDS = bert.WORDS | {"embedding_size": "embedding_size"}
"""The bertjax field of each HF field."""

READ = ("classifier_dropout", "summary_last_dropout")

FIXED = bert.FIXED

FIXED_BY_HEAD = {
    "mlm": {"tie_word_embeddings": True},
    "multiple_choice": {
        "summary_type": "first",
        "summary_use_proj": True,
        "summary_activation": "gelu",
    },
}

IRRELEVANT = config_words.IRRELEVANT


def parts() -> dict[str, list[ArrayMap]]:
    """The maps of all arrays; heads that read the pooled output have their own pooler.

    The projection of the embeddings is present if their width is not that of the layers.
    """
    return {
        "encoder": bert.encoder(PREFIX),
        "encoder/embeddings_project": dense(
            "encoder/embeddings_project", "electra.embeddings_project"
        ),
        "mlm": [
            *dense("mlm/transform/dense", "generator_predictions.dense"),
            *norm("mlm/transform/norm", "generator_predictions.LayerNorm"),
            ArrayMap("mlm/bias", "generator_lm_head.bias"),
        ],
        "rtd": [
            *dense("rtd/dense", "discriminator_predictions.dense"),
            *dense("rtd/classifier/dense", "discriminator_predictions.dense_prediction"),
        ],
        "glue": [
            *dense("glue/pooler/dense", "classifier.dense"),
            *dense("glue/classifier/dense", "classifier.out_proj"),
        ],
        "multiple_choice": [
            *dense("multiple_choice/pooler/dense", "sequence_summary.summary"),
            *dense("multiple_choice/classifier/dense", "classifier"),
        ],
        **TOKEN_HEADS,
    }


def fields(hf_config: Mapping[str, Any], parts: Collection[str]) -> dict[str, Any]:
    """The bertjax fields of an HF config.

    Raises:
      UserError: a field is missing, or has a value that bertjax does not support.
    """
    check_fixed(hf_config, parts, FIXED, FIXED_BY_HEAD)
    return {"name": "bert", **rename(hf_config, WORDS), "num_pooler_layers": 0}


def config(model: Mapping[str, Any], heads: Collection[str]) -> dict[str, Any]:
    """The HF config of a bertjax model.

    Raises:
      UserError: the model has a pooler.
    """
    model = {"embedding_size": 0, "num_pooler_layers": 1} | dict(model)
    if model["num_pooler_layers"]:
        raise UserError(
            "config.model.num_pooler_layers: got 1, expected 0, as an ELECTRA of transformers has "
            "no pooler; train with 0"
        )
    renamed = {word: model[field] for word, field in WORDS.items()}
    return renamed | {"embedding_size": model["embedding_size"] or model["hidden_size"]}


def describes(run: Mapping[str, Any]) -> bool:
    """Whether a run has narrow embeddings, or detects replaced tokens."""
    return bert.variant(run) == "electra"


_SHARED = (
    "encoder/word_embeddings/",
    "encoder/position_embeddings/",
    "encoder/segment_embeddings/",
    "encoder/embeddings/",
)
"""Prefixes of the parameters that generator and discriminator share."""


def generator(
    run: Mapping[str, Any], params: Mapping[str, np.ndarray]
) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
    """The generator of a run as a separate masked LM, narrower than its embeddings.

    In a run it has layers and a head only, and reads the embeddings of the discriminator; in
    transformers each of the two is a model with all of its arrays.

    Args:
      run: The config of the run, with all fields of its model.
      params: Its parameters by path.

    Returns:
      A config and its parameters; None if the run has no generator.
    """
    if "generator" not in run.get("objectives", {}):
        return None
    fields = {"size": Generator.size, "depth": Generator.depth, "hidden_act": ""}
    fields |= run["objectives"]["generator"]
    model = run["model"]
    embedding_size = model["embedding_size"] or model["hidden_size"]
    model = {
        **model,
        "embedding_size": embedding_size,
        **generator_fields(model, fields["size"], fields["depth"]),
    }
    shared = {n: array for n, array in params.items() if n.startswith(_SHARED)}
    own = {
        n.removeprefix("generator/"): array
        for n, array in params.items()
        if n.startswith("generator/")
    }
    objectives = {"mlm": {"hidden_act": fields["hidden_act"]}}
    return {**run, "model": model, "objectives": objectives}, shared | own
