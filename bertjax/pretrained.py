"""Load trained models: the config, tokenizer, modules and parameters of a run.

The loader of inference and of distillation (teachers). The export and `--init` need the arrays of
every part by name, which `train/checkpoint/restore.py` reads for all of them.
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable
from typing import Any

from jaxtyping import PyTree
from ml_collections import ConfigDict

from bertjax import build
from bertjax import config as configs
from bertjax.errors import UserError
from bertjax.interfaces import Tokenizer
from bertjax.io import storage
from bertjax.pretrainer import Encoder, Objective
from bertjax.tokenizers.tokenizer import load as load_tokenizer
from bertjax.train.checkpoint import origin as checkpoint_origin
from bertjax.train.checkpoint import restore


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A trained model: a run with one of its checkpoints.

    Attributes:
      source: The folder, the checkpoint and the config as plain values.
    """

    source: checkpoint_origin.PretrainedSource

    @functools.cached_property
    def config(self) -> ConfigDict:
        """The config of the run."""
        return configs.from_json(json.dumps(self.source.config))

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the run.

        Raises:
          UserError: the tokenizer is missing, or the model reads images.
        """
        return load_tokenizer(tokenizer_folder(self.source))

    def identity(self) -> dict[str, Any]:
        """Identifies the parameters and the tokenizer, independently of the path of the run."""
        return {"model": self.source.description(), "tokenizer": self.tokenizer.fingerprint}

    def encoder(self, precision: str = "", **fields: Any) -> Encoder:
        """Builds the encoder module.

        Args:
          precision: As `config.model.precision`; "" for that of the run.
          **fields: Fields of the module that replace those of the run.
        """
        chosen = {"precision": precision} if precision else {}
        return build.encoder({**self.config.model, **chosen, **fields})

    def forward_encoder(self, precision: str = "", **fields: Any) -> Encoder:
        """Builds the encoder for forward passes alone, with layers in a loop; see `encoder`.

        Without a backward pass, unrolled layers are no faster on CPUs, and take two to four times
        as long to compile. A number of unrolled layers in the config is kept.
        """
        loop = {"unroll": 1} if self.config.model.get("unroll") == 0 else {}
        return self.encoder(precision, **loop, **fields)

    def objective(self, name: str, tokenizer: Tokenizer | None = None) -> Callable[[], Objective]:
        """Returns a function that builds an objective, or the task, of the run.

        Args:
          name: A name of `config.objectives`, or `config.task.name`.
          tokenizer: The tokenizer of the run, for objectives that need its special ids.

        Raises:
          UserError: the run has no such objective or task.
        """
        config = self.config
        if "task" in config and config.task.name == name:
            return build.task(config.task)
        sections = config.objectives if "objectives" in config else {}
        if name not in sections:
            found = [*sections, *([config.task.name] if "task" in config else [])]
            raise UserError(
                f"{self.source.run} was not trained with {name!r}: got {', '.join(found)}; pass a "
                f"run with {name}"
            )
        fields = build.tokenizer_fields(config, tokenizer)
        return build.objectives({name: sections[name]}, fields)[name]

    def load_params(self, *parts: str) -> PyTree:
        """Loads parts of the parameters, such as "encoder" and "mlm", as dicts of numpy arrays."""
        return {part: restore.load_weights(self.source.checkpoint, part) for part in parts}


def load(name: str | Pretrained) -> Pretrained:
    """Loads RUN (newest checkpoint), RUN@STEP or RUN@best; see `train/checkpoint/origin.py`.

    A loaded model is returned as it is.

    Raises:
      UserError: the run or checkpoint is missing, or its parameters are untrained.
    """
    if isinstance(name, Pretrained):
        return name
    source = checkpoint_origin.resolve(name)
    if source.checkpoint is None:
        raise UserError(f"{name} has untrained parameters: pass the run itself, {source.run}")
    return Pretrained(source)


def tokenizer_folder(source: checkpoint_origin.PretrainedSource) -> pathlib.Path:
    """Returns the folder of a run's tokenizer: its own copy, or the one of its config.

    Raises:
      UserError: the tokenizer is in neither folder, or the model reads images.
    """
    if "vocab_size" not in build.model_fields(source.config["model"]):
        raise UserError(
            f"{source.run} has a model of images, {source.config['model']['name']}: expected a run "
            "whose model reads text"
        )
    own = source.run / "tokenizer"
    if "task" in source.config or own.exists():
        return own
    corpus, path = source.config["data"]["corpus"], source.config["tokenizer"]["path"]
    places = [path and storage.to_path(path), corpus and storage.to_path(corpus) / "tokenizer"]
    found = next((place for place in places if place and place.exists()), None)
    if found is None:
        raise UserError(
            f"the tokenizer of {source.run} is neither in {own} nor at "
            f"config.tokenizer.path={path!r}: copy it to {own}"
        )
    return found
