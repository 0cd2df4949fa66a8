"""RoBERTa (`RobertaModel` and its heads): BERT with positions that start at padding_idx + 1."""

from collections.abc import Collection, Mapping
from typing import Any

from bertjax.errors import UserError
from bertjax.huggingface.architectures import bert
from bertjax.huggingface.name_map import TOKEN_HEADS, ArrayMap, dense, norm

PREFIX = "roberta"

CLASSES = {
    (): "RobertaModel",
    ("mlm",): "RobertaForMaskedLM",
    ("glue",): "RobertaForSequenceClassification",
    ("multiple_choice",): "RobertaForMultipleChoice",
    ("squad",): "RobertaForQuestionAnswering",
    ("ner",): "RobertaForTokenClassification",
}

CLASSIFIER_DROPOUT = {"glue": "classifier_dropout", "ner": "classifier_dropout"}

CLASSIFIER_ACT = "tanh"

TIED_ARRAYS = {
    "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
    "lm_head.decoder.bias": "lm_head.bias",
}

HEAD_ACT = {"mlm": "gelu"}

WORDS = bert.WORDS

READ = ("classifier_dropout", "pad_token_id")

FIXED, FIXED_BY_HEAD = bert.FIXED, bert.FIXED_BY_HEAD

IRRELEVANT = {w: why for w, why in bert.IRRELEVANT.items() if w != "pad_token_id"}


def parts() -> dict[str, list[ArrayMap]]:
    """The maps of all arrays; the text classifier has its own pooler."""
    return {
        "encoder": bert.encoder(PREFIX),
        "encoder/pooler": dense("encoder/pooler/dense", "roberta.pooler.dense"),
        "mlm": [
            *dense("mlm/transform/dense", "lm_head.dense"),
            *norm("mlm/transform/norm", "lm_head.layer_norm"),
            ArrayMap("mlm/bias", "lm_head.bias"),
        ],
        "glue": [
            *dense("glue/pooler/dense", "classifier.dense"),
            *dense("glue/classifier/dense", "classifier.out_proj"),
        ],
        "multiple_choice": dense("multiple_choice/classifier/dense", "classifier"),
        **TOKEN_HEADS,
    }


def fields(hf_config: Mapping[str, Any], parts: Collection[str]) -> dict[str, Any]:
    """The bertjax fields of an HF config.

    Raises:
      UserError: see `bert.fields`, and `pad_token_id`, which the positions follow, is null.
    """
    pad_id = hf_config.get("pad_token_id", 1)
    if pad_id is None:
        raise UserError(
            "pad_token_id of config.json: got null, expected an id: the first position is one more"
        )
    return bert.fields(hf_config, parts) | {"position_offset": pad_id + 1}


def config(model: Mapping[str, Any], heads: Collection[str]) -> dict[str, Any]:
    """The HF config of a bertjax model."""
    return bert.config(model, heads) | {"pad_token_id": model["position_offset"] - 1}


def describes(run: Mapping[str, Any]) -> bool:
    """Whether a run's model is BERT with a position offset."""
    return bert.variant(run) == "roberta"
