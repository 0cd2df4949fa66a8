"""DeBERTa v2 and v3 (`DebertaV2Model` and its heads): disentangled attention.

Of the two masked LM heads of transformers, the legacy one is objective `mlm`, and the other one,
whose arrays have the names of the released code, `enhanced_mlm`. Transformers has no mask decoder
and ignores its position embeddings: they are exchanged with the arrays of the encoder, and the
outputs of `enhanced_mlm` are those of transformers for a model without a decoder.

The released heads for replaced token detection are in no class of transformers, and are left out.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from bertjax.errors import UserError
from bertjax.huggingface import config_words
from bertjax.huggingface.architectures import bert
from bertjax.huggingface.config_words import check_fixed, rename
from bertjax.huggingface.name_map import TOKEN_HEADS, ArrayMap, Model, Shape, dense, norm, table
from bertjax.objectives.generator import Objective as Generator
from bertjax.objectives.generator import generator_fields

PREFIX = "deberta"

CLASSES = {
    (): "DebertaV2Model",
    ("mlm",): "DebertaV2ForMaskedLM",
    ("enhanced_mlm",): "DebertaV2ForMaskedLM",
    ("glue",): "DebertaV2ForSequenceClassification",
    ("multiple_choice",): "DebertaV2ForMultipleChoice",
    ("squad",): "DebertaV2ForQuestionAnswering",
    ("ner",): "DebertaV2ForTokenClassification",
}

CLASSIFIER_DROPOUT = dict.fromkeys(("glue", "multiple_choice"), "cls_dropout")

CLASSIFIER_ACT = "gelu"

NOT_EXPORTED = {
    "generator": "it is a separate model, which --generator exports",
    "rtd": "no class of transformers for this architecture has it",
}

TIED_ARRAYS = {
    "cls.predictions.decoder.weight": "deberta.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}

EXTRA_EMBEDDING_ROWS = True  # 128,100 for 128,001 tokens

BUFFERS = tuple(
    f"mask_predictions.{module}.{array}"
    for module in ("dense", "LayerNorm", "classifier", "classifer")  # misspelled in some releases
    for array in ("weight", "bias")
)
"""The released head for replaced token detection, which transformers ignores."""

WORDS = bert.WORDS | {
    word: word
    for word in (
        "max_relative_positions",
        "position_buckets",
        "share_att_key",
        "position_biased_input",
    )
}

READ = (
    *("pos_att_type", "norm_rel_ebd", "embedding_size", "mask_decoder_layers", "cls_dropout"),
    *("attention_head_size", "pooler_hidden_size"),
)

FIXED = config_words.FIXED | {"relative_attention": True, "conv_kernel_size": 0}

_POOLER = {"pooler_dropout": 0, "pooler_hidden_act": "gelu"}

FIXED_BY_HEAD = {
    "mlm": {"legacy": True, "tie_word_embeddings": True},
    "enhanced_mlm": {"legacy": False},
    "glue": _POOLER,
    "multiple_choice": _POOLER,
}

IRRELEVANT = config_words.IRRELEVANT | {
    "conv_act": "of the convolution, which is refused",
    "conv_groups": "of the convolution, which is refused",
}

_ASSUMED = {
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-7,
    "relative_attention": False,
    "max_relative_positions": -1,
    "position_buckets": -1,
    "share_att_key": False,
    "position_biased_input": True,
}
"""Defaults of the config in transformers that differ from BERT's."""

_RELEASED_DECODER = 2
"""Layers of the mask decoder in the released code, for files that have its positions."""


@dataclasses.dataclass(frozen=True)
class SumMap(ArrayMap):
    """An array that is the sum of several parameters; an import sets all but the first to zero."""

    def hf_shapes(self, shapes: Mapping[str, Shape], model: Model) -> dict[str, Shape]:
        return {self.hf: shapes[self.paths[0]]}

    def bertjax_shapes(self, shapes: Mapping[str, Shape], model: Model) -> dict[str, Shape]:
        return dict.fromkeys(self.paths, shapes.get(self.paths[0], ()))

    def to_bertjax(
        self, hf_arrays: Mapping[str, np.ndarray], shapes: Mapping[str, Shape], model: Model
    ) -> dict[str, np.ndarray]:
        first, *others = self.paths
        zeros = np.zeros_like(hf_arrays[self.hf])
        return {first: hf_arrays[self.hf], **dict.fromkeys(others, zeros)}

    def to_hf(self, params: Mapping[str, np.ndarray], model: Model) -> dict[str, np.ndarray]:
        return {self.hf: np.sum([params[path] for path in self.paths], axis=0)}


def parts() -> dict[str, list[ArrayMap]]:
    """The maps of all arrays; those of the encoder that only some models have are parts."""
    embeddings, layer = f"{PREFIX}.embeddings", f"{PREFIX}.encoder.layer.{{layer}}"
    block, attention = "encoder/layers/block", f"{PREFIX}.encoder.layer.{{layer}}.attention"
    words = f"{embeddings}.word_embeddings"
    shared = tuple(f"encoder/shared_embeddings/{name}/embedding" for name in ("generator", "delta"))
    return {
        "encoder": [
            *norm("encoder/embeddings_norm", f"{embeddings}.LayerNorm"),
            *table("encoder/relative_embeddings", f"{PREFIX}.encoder.rel_embeddings"),
            *dense(f"{block}/attention/query", f"{attention}.self.query_proj"),
            *dense(f"{block}/attention/key", f"{attention}.self.key_proj"),
            *dense(f"{block}/attention/value", f"{attention}.self.value_proj"),
            *dense(f"{block}/attention/output", f"{attention}.output.dense", inputs=2),
            *norm(f"{block}/attention_norm", f"{attention}.output.LayerNorm"),
            *dense(f"{block}/feed_forward/intermediate", f"{layer}.intermediate.dense"),
            *dense(f"{block}/feed_forward/output", f"{layer}.output.dense"),
            *norm(f"{block}/feed_forward_norm", f"{layer}.output.LayerNorm"),
        ],
        "encoder/word_embeddings": table("encoder/word_embeddings", words),
        "encoder/shared_embeddings": [SumMap(shared, f"{words}.weight")],
        "encoder/position_embeddings": table(
            "encoder/position_embeddings", f"{embeddings}.position_embeddings"
        ),
        "encoder/segment_embeddings": table(
            "encoder/segment_embeddings", f"{embeddings}.token_type_embeddings"
        ),
        "encoder/embeddings_project": dense(
            "encoder/embeddings_project", f"{embeddings}.embed_proj", bias=False
        ),
        "encoder/relative_norm": norm("encoder/relative_norm", f"{PREFIX}.encoder.LayerNorm"),
        f"{block}/attention/position_key": dense(
            f"{block}/attention/position_key", f"{attention}.self.pos_key_proj"
        ),
        f"{block}/attention/position_query": dense(
            f"{block}/attention/position_query", f"{attention}.self.pos_query_proj"
        ),
        **_heads(),
    }


def _heads() -> dict[str, list[ArrayMap]]:
    pooler = {
        task: [
            *dense(f"{task}/pooler/dense", "pooler.dense"),
            *dense(f"{task}/classifier/dense", "classifier"),
        ]
        for task in ("glue", "multiple_choice")
    }
    return {
        "mlm": [
            *dense("mlm/transform/dense", "cls.predictions.transform.dense"),
            *norm("mlm/transform/norm", "cls.predictions.transform.LayerNorm"),
            ArrayMap("mlm/bias", "cls.predictions.bias"),
        ],
        "enhanced_mlm": [
            *dense("enhanced_mlm/transform/dense", "lm_predictions.lm_head.dense"),
            *norm("enhanced_mlm/transform/norm", "lm_predictions.lm_head.LayerNorm"),
            ArrayMap("enhanced_mlm/bias", "lm_predictions.lm_head.bias"),
        ],
        **pooler,
        **TOKEN_HEADS,
    }


def fields(hf_config: Mapping[str, Any], parts: Collection[str]) -> dict[str, Any]:
    """The bertjax fields of an HF config.

    Raises:
      UserError: a field is missing, or has a value that bertjax does not support.
    """
    hf_config = _ASSUMED | dict(hf_config)
    check_fixed(hf_config, parts, FIXED, FIXED_BY_HEAD)
    renamed = rename(hf_config, WORDS)
    width, heads = renamed["hidden_size"], renamed["num_attention_heads"]
    check_fixed(hf_config, parts, {"attention_head_size": width // heads})
    check_fixed(hf_config, parts, {"pooler_hidden_size": width})
    # Positions of a file that its encoder does not read are those of the mask decoder.
    decodes = "encoder/position_embeddings" in parts and not renamed["position_biased_input"]
    decoder_layers = _RELEASED_DECODER if decodes else 0
    return {
        "name": "deberta",
        **renamed,
        "pos_att_type": _split(hf_config.get("pos_att_type") or ()),
        "norm_rel_ebd": _norm(hf_config.get("norm_rel_ebd") or "none"),
        "embedding_size": hf_config.get("embedding_size", width),
        "mask_decoder_layers": hf_config.get("mask_decoder_layers", decoder_layers),
    }


def _split(terms: str | Collection[str]) -> tuple[str, ...]:
    """Terms of the attention scores, which older configs join by `|`."""
    listed = terms.lower().split("|") if isinstance(terms, str) else terms
    return tuple(term.strip() for term in listed)


def _norm(names: str) -> str:
    listed = _split(names)
    return "layer_norm" if listed == ("layer_norm",) else names


def config(model: Mapping[str, Any], heads: Collection[str]) -> dict[str, Any]:
    """The HF config of a bertjax model.

    Raises:
      UserError: embeddings of another width than the model's with a head that does not have them.
    """
    width, narrow = model["hidden_size"], model["embedding_size"] or model["hidden_size"]
    if narrow != width and "enhanced_mlm" in heads:
        raise UserError(
            f"config.model.embedding_size: got {narrow}, expected {width}, the only value with the "
            "head of objective enhanced_mlm in transformers; train with objective mlm"
        )
    decoder = model["mask_decoder_layers"]
    return {
        **{word: model[field] for word, field in WORDS.items()},
        "relative_attention": True,
        "pos_att_type": list(model["pos_att_type"]),
        "norm_rel_ebd": model["norm_rel_ebd"],
        **({"embedding_size": narrow} if narrow != width else {}),
        **({"mask_decoder_layers": decoder} if decoder else {}),
        "legacy": "enhanced_mlm" not in heads,
    }


def describes(run: Mapping[str, Any]) -> bool:
    """Whether a run's model is a DeBERTa."""
    return run["model"]["name"] == "deberta"


def generator(
    run: Mapping[str, Any], params: Mapping[str, np.ndarray]
) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
    """The generator of a run as a separate masked LM.

    In a run it reads word embeddings of the discriminator: those of both, or those that only the
    generator trains.

    Args:
      run: The config of the run, with all fields of its model.
      params: Its parameters by path.

    Returns:
      A config and its parameters; None if the run has no generator.
    """
    if "generator" not in run.get("objectives", {}):
        return None
    names = ("size", "depth", "mask_decoder_layers")
    fields = {name: getattr(Generator, name) for name in names} | {"hidden_act": ""}
    fields |= run["objectives"]["generator"]
    model = dict(run["model"])
    embedding_size = model["embedding_size"] or model["hidden_size"]
    model |= generator_fields(model, fields["size"], fields["depth"])
    model |= {
        "embedding_size": embedding_size,
        "mask_decoder_layers": fields["mask_decoder_layers"],
        "embedding_sharing": "es",
    }
    # The head is named after the objective that predicts from the mask decoder.
    places = {"generator/mlm/": "enhanced_mlm/", "generator/": ""}
    words = "encoder/word_embeddings/embedding"
    own = {words: params.get(words, params.get("encoder/shared_embeddings/generator/embedding"))}
    for path, array in params.items():
        place = next((place for place in places if path.startswith(place)), None)
        if place is not None:
            own[places[place] + path.removeprefix(place)] = array
    objectives = {"enhanced_mlm": {"hidden_act": fields["hidden_act"]}}
    return {**run, "model": model, "objectives": objectives}, own
