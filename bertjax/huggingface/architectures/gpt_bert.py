"""GPT-BERT with the array names of ltgoslo/gpt-bert and of its wrapper (`LtgbertForMaskedLM`).

Transformers has no class: a folder brings its own code. Query and key are one array, and so are
value and gate of attention and the two halves of a feed-forward net. Most LayerNorms are without
parameters. That of the released head is, too, and its output layer is a separate array: scale
and bias of the head of bertjax become part of it.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from bertjax.errors import UserError
from bertjax.huggingface import config_words
from bertjax.huggingface.config_words import check_fixed, rename
from bertjax.huggingface.name_map import LAYER, ArrayMap, Model, Shape, dense, norm, table
from bertjax.layers.dense import activation
from bertjax.layers.depth_weighted_stack import SUBLAYERS
from bertjax.layers.disentangled_attention import relative_positions

PREFIX = ""

CLASSES = {(): "LtgbertModel", ("mntp",): "LtgbertForMaskedLM"}

REMOTE_CODE = True

HAS_SEGMENTS = False

SPECIALS = tuple(f"<special_{number}>" for number in range(11))

_POSITIONS = ".position_indices"

BUFFERS = (_POSITIONS,)

WORDS = {
    word: word
    for word in (
        *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
        *("intermediate_size", "hidden_dropout_prob", "attention_probs_dropout_prob"),
        *("max_position_embeddings", "position_bucket_size", "layer_norm_eps"),
    )
}

READ = ("num_layers",)

FIXED = config_words.FIXED | {"is_decoder": False}

FIXED_BY_HEAD: dict[str, dict[str, Any]] = {}

IRRELEVANT = config_words.IRRELEVANT | {
    "auto_map": "it names the code of the folder",
    "max_sequence_length": "a length of training texts",
    "tie_word_embeddings": "the arrays determine the output layer",
    "temperature": "of classifiers, which are not imported",
    "cls_dropout": "of classifiers, which are not imported",
    "classifier_dropout": "of classifiers, which are not imported",
}

_ACT = "gelu"
"""The activation of the gate and of the head; it is in no config."""

_REQUIRED = {
    "attention_gate": True,
    "layer_weights": True,
    "interleaved_positions": False,
    "head_norm_parameters": True,
}

_EMBEDDINGS = "encoder/word_embeddings/embedding"

ATTENTION = "encoder/layers/block/attention"

_FEED_FORWARD = "encoder/layers/block/feed_forward"

_WORDS = "word_embedding.weight"

_MAX_ULPS = 4
"""A factor is less than this far from the quotient of its product, rounded to float32."""


@dataclasses.dataclass(frozen=True)
class SumWeights(ArrayMap):
    """The weights of all depth-weighted sums: one parameter, and one array for each sum."""

    def hf_shapes(self, shapes: Mapping[str, Shape], model: Model) -> dict[str, Shape]:
        sums = range(len(SUBLAYERS) * model["num_hidden_layers"])
        return {self.hf.replace(LAYER, str(number)): (2 + number,) for number in sums}

    def bertjax_shapes(self, shapes: Mapping[str, Shape], model: Model) -> dict[str, Shape]:
        return {self.paths[0]: (sum(size for (size,) in self.hf_shapes(shapes, model).values()),)}

    def to_bertjax(
        self, hf_arrays: Mapping[str, np.ndarray], shapes: Mapping[str, Shape], model: Model
    ) -> dict[str, np.ndarray]:
        weights = [hf_arrays[name] for name in self.hf_shapes(shapes, model)]
        return {self.paths[0]: np.concatenate(weights)}

    def to_hf(self, params: Mapping[str, np.ndarray], model: Model) -> dict[str, np.ndarray]:
        sizes = self.hf_shapes({}, model)
        ends = np.cumsum([size for (size,) in sizes.values()])
        return dict(zip(sizes, np.split(params[self.paths[0]], ends[:-1]), strict=True))


@dataclasses.dataclass(frozen=True)
class ScaledEmbeddings(ArrayMap):
    """An output layer: the word embeddings times the scale of the LayerNorm before it.

    Attributes:
      words: HF name of the word embeddings.
    """

    words: str = ""

    def hf_shapes(self, shapes: Mapping[str, Shape], model: Model) -> dict[str, Shape]:
        return {self.hf: shapes[_EMBEDDINGS]}

    def bertjax_shapes(self, shapes: Mapping[str, Shape], model: Model) -> dict[str, Shape]:
        return {self.paths[0]: shapes.get(_EMBEDDINGS, ())[1:]}

    def to_bertjax(
        self, hf_arrays: Mapping[str, np.ndarray], shapes: Mapping[str, Shape], model: Model
    ) -> dict[str, np.ndarray]:
        words, output = (hf_arrays[name].astype(np.float32) for name in (self.words, self.hf))
        scale = column_factors(words, output)
        if scale is None:
            raise UserError(
                f"{self.hf}: got other values, expected those of {self.words}, or these times "
                "one factor per column; bertjax shares the two tables, so that the head cannot be "
                "imported"
            )
        return {self.paths[0]: scale}

    def to_hf(self, params: Mapping[str, np.ndarray], model: Model) -> dict[str, np.ndarray]:
        return {self.hf: params[_EMBEDDINGS] * params[self.paths[0]]}


@dataclasses.dataclass(frozen=True)
class ShiftedBias(ArrayMap):
    """The bias of an output layer, and the logits of the bias of the LayerNorm before it.

    An import sets the latter, the second parameter, to zero.
    """

    def hf_shapes(self, shapes: Mapping[str, Shape], model: Model) -> dict[str, Shape]:
        return {self.hf: shapes[self.paths[0]]}

    def bertjax_shapes(self, shapes: Mapping[str, Shape], model: Model) -> dict[str, Shape]:
        words = shapes.get(_EMBEDDINGS, ())
        return dict(zip(self.paths, (words[:1], words[1:]), strict=True))

    def to_bertjax(
        self, hf_arrays: Mapping[str, np.ndarray], shapes: Mapping[str, Shape], model: Model
    ) -> dict[str, np.ndarray]:
        bias, shift = self.paths
        return {bias: hf_arrays[self.hf], shift: np.zeros(shapes[shift], np.float32)}

    def to_hf(self, params: Mapping[str, np.ndarray], model: Model) -> dict[str, np.ndarray]:
        bias, shift = (params[path] for path in self.paths)
        if shift.any():  # adding 0 would change the sign of a bias of -0
            bias = (bias + params[_EMBEDDINGS].astype(np.float64) @ shift).astype(np.float32)
        return {self.hf: bias}


def column_factors(words: np.ndarray, output: np.ndarray) -> np.ndarray | None:
    """Factors with which `words * factors` is `output`, bit for bit; None if there are none."""
    columns = np.arange(words.shape[1])
    largest = np.abs(words).argmax(axis=0), columns
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        quotient = np.where(words[largest] == 0, np.float32(1), output[largest] / words[largest])
        factors, found = quotient, np.zeros(len(columns), bool)
        for direction in (-np.inf, np.inf):
            candidate = quotient
            for _ in range(_MAX_ULPS):
                fits = (words * candidate == output).all(axis=0)
                factors, found = np.where(fits, candidate, factors), found | fits
                if found.all():
                    return factors
                candidate = np.nextafter(candidate, np.float32(direction))
    return None


def parts() -> dict[str, list[ArrayMap]]:
    """The maps of all arrays."""
    return maps("", "transformer.", "classifier")


def maps(encoder: str, layers: str, head: str) -> dict[str, list[ArrayMap]]:
    """The maps of all arrays, with these prefixes of the encoder, its layers and the head."""
    attention, embedding = f"{layers}attention_layers.{LAYER}", f"{encoder}embedding"
    transform, head = "mntp/transform", f"{head}.nonlinearity"
    return {
        "encoder": [
            *embedding_maps(embedding),
            *attention_maps(attention),
            *dense((f"{ATTENTION}/value", f"{ATTENTION}/gate"), f"{attention}.in_proj_vg"),
            *feed_forward_maps(f"{layers}mlp_layers.{LAYER}.mlp"),
            SumWeights("encoder/layers/depth_weights", f"{layers}dwa_modules.alphas.{LAYER}"),
        ],
        "mntp": [
            *dense(f"{transform}/dense", f"{head}.1"),
            ScaledEmbeddings(
                f"{transform}/norm/scale", f"{head}.5.weight", words=f"{embedding}.{_WORDS}"
            ),
            ShiftedBias(("mntp/bias", f"{transform}/norm/bias"), f"{head}.5.bias"),
        ],
    }


def embedding_maps(hf: str) -> list[ArrayMap]:
    """The maps of the embeddings of words and relative positions."""
    return [
        *table("encoder/word_embeddings", f"{hf}.word_embedding"),
        ArrayMap("encoder/relative_embeddings/embedding", f"{hf}.relative_embedding"),
        *norm("encoder/relative_norm", f"{hf}.relative_layer_norm"),
    ]


def attention_maps(hf: str) -> list[ArrayMap]:
    """The maps of query, key and output projections."""
    return [
        *dense((f"{ATTENTION}/query", f"{ATTENTION}/key"), f"{hf}.in_proj_qk"),
        *dense(f"{ATTENTION}/output", f"{hf}.out_proj", inputs=2),
    ]


def feed_forward_maps(hf: str) -> list[ArrayMap]:
    """The maps of a feed-forward net."""
    # The second half of the first layer is the one with the activation.
    halves = tuple(f"{_FEED_FORWARD}/{name}" for name in ("gate", "intermediate"))
    return [
        *dense(halves, f"{hf}.1", bias=False),
        *dense(f"{_FEED_FORWARD}/output", f"{hf}.4", bias=False),
    ]


def constants(hf_config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The row of the relative position of each pair of tokens, in every layer."""
    return {
        f"transformer.attention_layers.{layer}{_POSITIONS}": position_indices(hf_config)
        for layer in range(hf_config["num_hidden_layers"])
    }


def position_indices(hf_config: Mapping[str, Any]) -> np.ndarray:
    """The rows of `relative_embedding` by position of the query and position of the key."""
    length = hf_config["max_position_embeddings"]
    distances = np.arange(1 - length, length)
    # The first row in bertjax would be that of a distance that no pair has: the table is without.
    rows = relative_positions(distances, hf_config["position_bucket_size"], length) - 1
    pairs = np.subtract.outer(np.arange(length), np.arange(length))
    return rows.astype(np.int64)[pairs + length - 1]


def fields(hf_config: Mapping[str, Any], parts: Collection[str]) -> dict[str, Any]:
    """The bertjax fields of an HF config.

    Raises:
      UserError: a field is missing, or has a value that bertjax does not support.
    """
    check_fixed(hf_config, parts, FIXED)
    if "num_layers" in hf_config:
        hf_config = {"num_hidden_layers": hf_config["num_layers"], **hf_config}
    renamed = rename(hf_config, WORDS, assumed={})
    return {
        "name": "gpt_bert",
        **renamed,
        "hidden_act": _ACT,
        **_REQUIRED,
        "initializer_range": math.sqrt(2 / (5 * renamed["hidden_size"])),
    }


def config(model: Mapping[str, Any], heads: Collection[str]) -> dict[str, Any]:
    """The HF config of a bertjax model.

    Raises:
      UserError: the model has a field that the released code does not support.
    """
    check_model(model, _REQUIRED)
    return {word: model[field] for word, field in WORDS.items()}


def check_model(model: Mapping[str, Any], required: Mapping[str, bool]) -> None:
    """Refuses a bertjax model that the released code does not compute.

    Raises:
      UserError: another value than the required one, or another activation.
    """
    for field, value in required.items():
        if model[field] != value:
            raise UserError(
                f"config.model.{field}: got {model[field]}, expected {value}, as in the released "
                f"code for attention_gate={model['attention_gate']}; the run cannot be exported"
            )
    if activation(model["hidden_act"]) is not activation(_ACT):
        raise UserError(
            f"config.model.hidden_act: got {model['hidden_act']!r}, expected {_ACT!r}, the only "
            "activation of the released code; the run cannot be exported"
        )


def describes(run: Mapping[str, Any]) -> bool:
    """Whether a run's model has the gate of GPT-BERT, which LTG-BERT does not have."""
    return run["model"]["name"] == "gpt_bert" and run["model"]["attention_gate"]
