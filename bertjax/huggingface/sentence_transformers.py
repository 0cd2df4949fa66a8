"""Read and write the settings of sentence-transformers: pooling, normalisation, prompts, length.

A folder of sentence-transformers is one of transformers with `modules.json`, the list of modules
that a text passes: the encoder, the pooling and, for unit vectors, a normalisation.

read_folder        folder -> its settings as text, which an imported run keeps
is_cross_encoder   folder -> whether it has a classifier of pairs instead
settings_of        config of a run -> EmbeddingSettings, or None
choose             config of a run, options of the user -> EmbeddingSettings
find_prompt        EmbeddingSettings, options of the user -> the prompt of a text
write              adds the files to a folder of transformers
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from bertjax import build
from bertjax.errors import UserError
from bertjax.huggingface import architecture as architectures
from bertjax.io.files import read_json, write_hf_json
from bertjax.layers.text_embeddings import POOLINGS

DEFAULT_LENGTH = 512
"""Maximum sequence length of models without a maximum."""

_MODULES, _TRANSFORMER = "modules.json", "sentence_bert_config.json"
_PROMPTS, _TOKENIZER = "config_sentence_transformers.json", "tokenizer_config.json"
_CLASSES = "sentence_transformers.models"
"""The package of the modules, which newer releases still read under this name."""
_FLAG = "pooling_mode_"
_FLAGS = {"cls_token": "cls", "mean_tokens": "mean", "weightedmean_tokens": "weighted"}
"""Names of the poolings in files of older releases, which have a flag for each."""
_MODES = {"weightedmean": "weighted"}
"""Names in files of newer releases that differ from those of bertjax."""
QUERY, DOCUMENT = "query", "document"
"""Names of the prompts of retrieval."""
_DOCUMENT_NAMES = (DOCUMENT, "passage", "corpus")
COSINE, DOT = "cosine", "dot"
_CROSS_ENCODER = "CrossEncoder"
"""The `model_type` in `_PROMPTS`."""
_CROSS_ENCODER_FIELDS = ("sentence_transformers", "sbert_ce_default_activation_function")
"""Fields of `config.json`, one of which a cross-encoder of older releases has."""
_NO_LENGTH = 10**6
"""transformers writes a huge `model_max_length` for tokenizers without a limit."""


@dataclasses.dataclass(frozen=True)
class EmbeddingSettings:
    """How a model embeds texts.

    Attributes:
      pooling: One of `layers/text_embeddings.py`; "" if bertjax has no such pooling.
      normalize: Whether embeddings are unit vectors.
      max_length: Maximum number of tokens of a sequence; 0 for the model's maximum, or 512.
      prompts: Texts that are put before a text, by name: `query`, `document` and others; without
        empty ones.
      default_prompt: Name of the prompt of other texts than queries and documents; "" for none.
      similarity: `cosine` or `dot`: how queries are compared with documents.
      dim: Number of the first values of an embedding that are kept; 0 for all.
      unsupported: The settings that bertjax does not support, as text; "" for none.
    """

    pooling: str
    normalize: bool
    max_length: int
    prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    default_prompt: str = ""
    similarity: str = COSINE
    dim: int = 0
    unsupported: str = ""


def read_folder(folder: pathlib.Path) -> str:
    """Returns the settings of a folder as JSON, for the config of an imported run; "" for none.

    Raises:
      UserError: `modules.json`, a file that it names, or the file of prompts is malformed.
    """
    if not (folder / _MODULES).is_file():
        return ""
    try:
        modules = [
            {**_read(folder / each["path"] / "config.json"), "type": each["type"].split(".")[-1]}
            for each in json.loads((folder / _MODULES).read_text(encoding="utf-8"))
        ]
    except (ValueError, TypeError, KeyError):
        raise UserError(
            f"{folder / _MODULES}: expected a list of objects with path and type, as "
            "sentence-transformers writes it; fix or remove the file"
        ) from None
    transformer = _read(folder / _TRANSFORMER)
    stored = _read(folder / _PROMPTS)
    prompts, default = stored.get("prompts") or {}, stored.get("default_prompt_name")
    if not isinstance(prompts, dict) or (default and default not in prompts):
        raise UserError(
            f"{folder / _PROMPTS}: got the prompts {prompts} and default_prompt_name={default!r}, "
            "expected texts by name, and one of the names or null; fix or remove the file"
        )
    pooling = next((module for module in modules if module["type"] == "Pooling"), {})
    return json.dumps(
        {
            "modules": [module["type"] for module in modules],
            "pooling": _modes(pooling),
            "include_prompt": pooling.get("include_prompt", True),
            "max_length": max_length(folder),
            "do_lower_case": bool(transformer.get("do_lower_case", False)),
            "prompts": prompts,
            "default_prompt": default or "",
            "similarity": stored.get("similarity_fn_name") or COSINE,
        }
    )


def max_length(folder: pathlib.Path) -> int:
    """Returns the maximum number of tokens of a sequence; 0 if a folder has none."""
    length = _read(folder / _TRANSFORMER).get("max_seq_length")
    length = length or _read(folder / _TOKENIZER).get("model_max_length") or 0
    return int(length) if length < _NO_LENGTH else 0


def is_cross_encoder(folder: pathlib.Path) -> bool:
    """Whether a folder is a `CrossEncoder`, a classifier of pairs of texts."""
    if _read(folder / _PROMPTS).get("model_type") == _CROSS_ENCODER:
        return True
    config = _read(folder / "config.json")
    return any(name in config for name in _CROSS_ENCODER_FIELDS)


def _read(path: pathlib.Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _modes(pooling: Mapping[str, Any]) -> list[str]:
    """The names of the poolings of a module, whose vectors are concatenated."""
    if mode := pooling.get("pooling_mode"):
        modes = [mode] if isinstance(mode, str) else list(mode)
        return [_MODES.get(name, name) for name in modes]
    flags = [name.removeprefix(_FLAG) for name, on in pooling.items() if _FLAG in name and on]
    return [_FLAGS.get(name, name) for name in flags]


def settings_of(config: Mapping[str, Any]) -> EmbeddingSettings | None:
    """The settings of a run: those it was trained with, or imported with; None for others.

    Args:
      config: Config of the run.
    """
    if "task" in config and architectures.head_class(config["task"]["name"]).embeds:
        task, length = config["task"], config["data"]["max_seq_length"]
        prompts = {name: task.get(f"{name}_prompt", "") for name in (QUERY, DOCUMENT)}
        is_dot = task["loss_type"] in architectures.head_class(task["name"]).dot_product_losses
        return EmbeddingSettings(
            task["pooling"],
            not is_dot,
            length,
            _without_empty(prompts),
            similarity=DOT if is_dot else COSINE,
        )
    if "imported" in config and "sentence_transformers" in config["imported"]:
        return _parse(json.loads(config["imported"]["sentence_transformers"]))
    return None


def _parse(stored: Mapping[str, Any]) -> EmbeddingSettings:
    modules, modes = list(stored["modules"]), stored["pooling"]
    normalize = modules[2:] == ["Normalize"]
    similarity, unsupported = stored.get("similarity", COSINE), ""
    if modules[:2] != ["Transformer", "Pooling"] or (len(modules) > 2 and not normalize):
        unsupported = f"the modules {', '.join(modules)}, expected Transformer, Pooling, Normalize"
    elif len(modes) != 1 or modes[0] not in POOLINGS:
        unsupported = f"pooling {' and '.join(modes)}, expected one of {', '.join(POOLINGS)}"
    elif stored["do_lower_case"]:
        unsupported = "do_lower_case=true, expected a tokenizer that lowercases"
    elif similarity not in (COSINE, DOT):
        unsupported = f"similarity_fn_name={similarity}, expected cosine or dot"
    elif not stored.get("include_prompt", True):
        unsupported = "include_prompt=false, expected a pooling of the tokens of the prompt too"
    pooling = "" if unsupported else modes[0]
    # Imports of earlier releases have the text of the default prompt only.
    default = stored.get("default_prompt", "default")
    prompts = _without_empty(stored.get("prompts", {default: stored.get("prompt")}))
    document = [prompts[name] for name in _DOCUMENT_NAMES if name in prompts]
    if document:
        prompts[DOCUMENT] = document[0]
    return EmbeddingSettings(
        pooling,
        normalize,
        stored["max_length"],
        prompts,
        default,
        similarity,
        unsupported=unsupported,
    )


def _without_empty(prompts: Mapping[str, str | None]) -> dict[str, str]:
    return {name: text for name, text in prompts.items() if text}


def choose(
    config: Mapping[str, Any],
    *,
    pooling: str = "",
    normalize: bool | None = None,
    max_length: int = 0,
    dim: int = 0,
    prompts: Mapping[str, str | None] = MappingProxyType({}),
    default: str = "mean",
) -> EmbeddingSettings:
    """Returns the settings of a run, with those that the user gives in their place.

    Args:
      config: Config of the run.
      pooling: Given by the user; "" for that of the run.
      normalize: Likewise; None for that of the run.
      max_length: Likewise; 0 for that of the run.
      dim: Number of the first values of an embedding that are kept, such as one of the
        `matryoshka_dims` of training; 0 for all.
      prompts: Likewise, by name; None for that of the run.
      default: Pooling of a run without settings: `mean`, or `none` for a vector of each token.

    Raises:
      UserError: there is no such pooling, or the run was imported with settings that bertjax does
        not compute.
    """
    allowed = dict.fromkeys((*POOLINGS, default))
    if pooling and pooling not in allowed:
        raise UserError(f"pooling: got {pooling!r}, expected one of {', '.join(allowed)}")
    own = settings_of(config) or EmbeddingSettings(default, False, 0)
    if own.unsupported and not pooling:
        raise UserError(
            f"unsupported embedding settings of the model: got {own.unsupported}; pass --pooling "
            f"with one of {', '.join(POOLINGS)} to replace them"
        )
    if normalize is None:
        normalize = own.normalize and pooling != "none"  # applies to pooled vectors only
    limit = min(build.positions(config["model"]), own.max_length or DEFAULT_LENGTH)
    given = {name: text for name, text in prompts.items() if text is not None}
    replaced = _DOCUMENT_NAMES if DOCUMENT in given else ()
    kept = {name: text for name, text in own.prompts.items() if name not in replaced}
    return EmbeddingSettings(
        pooling or own.pooling,
        normalize,
        max_length or int(limit),
        _without_empty(kept | given),
        own.default_prompt,
        own.similarity,
        dim,
    )


def find_prompt(settings: EmbeddingSettings, prompt: str | None, name: str) -> str:
    """Returns the text that is put before every text.

    Args:
      settings: The settings of the model.
      prompt: Given by the user; None for one of the model.
      name: Name of a prompt of the model; "" for its default, usually none.

    Raises:
      UserError: both are given, the model has no such prompt, or tokens are not pooled.
    """
    if prompt is not None and name:
        raise UserError(f"prompt_name: got {name!r} and the prompt {prompt!r}; leave one out")
    if settings.pooling == "none":
        if prompt or name:
            raise UserError(
                f"prompt: got {prompt or name!r} with a vector for each token, expected a pooling; "
                "pass --pooling mean"
            )
        return ""
    if prompt is not None or not name:
        default = settings.prompts.get(settings.default_prompt, "")
        return default if prompt is None else prompt
    # A model may have a prompt for queries only.
    known = {QUERY: "", DOCUMENT: "", **settings.prompts} if settings.prompts else {}
    if name not in known:
        raise UserError(
            f"prompt_name: got {name!r}, expected "
            f"{'one of ' + ', '.join(known) if known else 'none, as the model has no prompts'}; "
            "leave it out, or pass the text with --prompt"
        )
    return known[name]


def check(run: Mapping[str, Any], settings: EmbeddingSettings) -> None:
    """Checks that sentence-transformers computes the same embeddings as bertjax.

    Raises:
      UserError: the library would pool another token, or the length exceeds the positions.
    """
    if settings.max_length > build.positions(run["model"]):
        raise UserError(
            f"max_length: got {settings.max_length}, expected at most "
            f"{build.positions(run['model'])}, the model's positions"
        )
    if settings.pooling == "cls" and build.cls_last(run["model"]):
        raise UserError(
            f"pooling cls: got a {run['model']['name']}, whose [CLS] is the last token, expected a "
            "model with [CLS] first, which sentence-transformers pools; pass --pooling mean"
        )


def write(folder: pathlib.Path, settings: EmbeddingSettings, width: int) -> None:
    """Adds the files of sentence-transformers to a folder of transformers.

    Args:
      folder: The folder of the encoder and its tokenizer.
      settings: How texts are embedded.
      width: Width of the embeddings.
    """
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    modules += [("2_Normalize", "Normalize")] if settings.normalize else []
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": f"{_CLASSES}.{name}"}
        for number, (path, name) in enumerate(modules)
    ]
    flags = {f"{_FLAG}{flag}": mode == settings.pooling for flag, mode in _FLAGS.items()}
    others = ("max_tokens", "mean_sqrt_len_tokens", "lasttoken")
    flags |= {f"{_FLAG}{flag}": False for flag in others}
    for path, _ in modules[1:]:
        (folder / path).mkdir()
    write_hf_json(
        folder / "1_Pooling" / "config.json", {"word_embedding_dimension": width, **flags}
    )
    if settings.normalize:
        write_hf_json(folder / "2_Normalize" / "config.json", {})
    write_hf_json(folder / _MODULES, listed)
    length = {"max_seq_length": settings.max_length, "do_lower_case": False}
    write_hf_json(folder / _TRANSFORMER, length)
    default = settings.default_prompt
    prompts = {
        "prompts": dict(settings.prompts),
        "default_prompt_name": default if default in settings.prompts else None,
        "similarity_fn_name": settings.similarity,
    }
    write_hf_json(folder / _PROMPTS, prompts)
