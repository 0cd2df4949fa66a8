"""Teachers for distillation: trained models that objectives of a run use.

In a config, an objective's field `teacher` names a run; the objective gets what makes its model,
and the trainer its parameters, which lie beside the state and not in it: they have no optimizer
memory, and no checkpoint writes them again. A checkpoint remembers their fingerprint instead, and
is refused beside another teacher.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jaxtyping import PyTree
from ml_collections import ConfigDict

from bertjax import build, catalog, pretrained
from bertjax.errors import UserError
from bertjax.interfaces import Tokenizer
from bertjax.pretrainer import Pretrainer
from bertjax.tokenizers.tokenizer import load as load_tokenizer
from bertjax.train.checkpoint import origin as checkpoint_origin
from bertjax.train.checkpoint import trees


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A trained model, found but not yet read.

    Attributes:
      origin: Where it comes from.
      of: The objective or task of its own run that it brings along; "" for the encoder alone.
    """

    origin: checkpoint_origin.PretrainedSource
    of: str

    @property
    def make(self) -> Callable[[], Pretrainer]:
        """What makes the model: its encoder keeps hidden states, its objective gives scores."""
        run = pretrained.Pretrained(self.origin)
        encoder = run.encoder(output_hidden_states=True)
        objectives = {self.of: run.objective(self.of)} if self.of else {}
        return functools.partial(Pretrainer, encoder, objectives, parent=None)

    def read(self) -> PyTree:
        """Its parameters, as numpy arrays."""
        parts = ["encoder", self.of] if self.of else ["encoder"]
        return pretrained.Pretrained(self.origin).params(*parts)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of its parameters."""
        return trees.fingerprint(self.read())

    def check(self, config: ConfigDict, tokenizer: Tokenizer | None, max_length: int) -> None:
        """Refuses a teacher that cannot read what the student reads, or knows another task.

        Args:
          config: Of the student's run.
          tokenizer: Its tokenizer; None where only the sizes of the vocabularies are compared.
          max_length: Tokens of its longest sequences.

        Raises:
          UserError: naming what differs.
        """
        self._check_tokens(config, tokenizer)
        room = build.positions(self.origin.config["model"])
        if max_length > room:
            raise UserError(
                f"the teacher {self.origin.run} reads at most {room} tokens, this run's sequences "
                f"have {max_length}: shorten them to --config.data.max_seq_length={room}"
            )
        tasks = [each["task"] for each in (self.origin.config, config) if "task" in each]
        if len(tasks) == 2 and config.task.name == self.of:
            theirs, ours = map(_subject, tasks)
            if theirs != ours:
                raise UserError(
                    f"the teacher {self.origin.run} was taught {theirs}, this run learns {ours}: "
                    f"name one that was fine-tuned on {ours}"
                )

    def _check_tokens(self, config: ConfigDict, tokenizer: Tokenizer | None) -> None:
        models = self.origin.config["model"], config.model
        theirs, ours = (model.get("vocab_size", 0) for model in models)
        folder = self.origin.run / "tokenizer"
        known = tokenizer is not None and folder.exists()
        if theirs != ours or (
            known and load_tokenizer(folder).fingerprint != tokenizer.fingerprint
        ):
            raise UserError(
                f"the teacher {self.origin.run} reads other tokens ({theirs:,} pieces) than this "
                f"run ({ours:,}): set --config.tokenizer.path={folder}"
            )


Teachers = Mapping[str, Teacher]
"""By the objective that asks them."""


def find(sections: Mapping[str, Mapping[str, Any]]) -> Teachers:
    """The teachers that `config.objectives` names.

    Raises:
      UserError: one is missing, or is no trained run.
    """
    found = {}
    for name, fields in sections.items():
        module = catalog.load("objectives", name).Objective
        if "teacher" in {field.name for field in dataclasses.fields(module)}:
            of = getattr(module, "of", "")
            found[name] = _find(name, {"teacher": "", "of": of, **fields})
    return found


def objectives(
    sections: Mapping[str, Mapping[str, Any]], facts: Mapping[str, Any], teachers: Teachers
) -> dict[str, Callable[[], Any]]:
    """As `build.objectives`, each with its teacher's model."""
    taught = {name: {"teacher": teacher.make} for name, teacher in teachers.items()}
    return build.objectives(
        {name: {**fields, **taught.get(name, {})} for name, fields in sections.items()}, facts
    )


def frozen(teachers: Teachers) -> dict[str, PyTree]:
    """The teachers' parameters as the objectives expect them in the collection "frozen"."""
    return {name: {"teacher": {"params": teacher.read()}} for name, teacher in teachers.items()}


def shapes(teachers: Teachers) -> dict[str, PyTree]:
    """As `frozen`, for a program that is compiled and not run."""

    def shape(array):
        return jax.ShapeDtypeStruct(array.shape, array.dtype)

    return jax.tree.map(shape, frozen(teachers))


def provenance(teachers: Teachers) -> dict[str, str]:
    """What the checkpoints of a run remember of its teachers."""
    return {f"teacher_of_{name}": teacher.fingerprint for name, teacher in teachers.items()}


def _find(name: str, fields: Mapping[str, Any]) -> Teacher:
    if not fields["teacher"]:
        raise UserError(
            f"objective {name} has no teacher: set --config.objectives.{name}.teacher=RUN, the "
            "folder of a trained run, RUN@STEP or RUN@best"
        )
    try:
        origin = checkpoint_origin.resolve(fields["teacher"])
    except UserError as error:
        raise UserError(f"the teacher of objective {name}: {error}") from None
    if origin.checkpoint is None:
        raise UserError(f"the teacher of objective {name} is {fields['teacher']}: expected a run")
    return Teacher(origin, fields["of"])


def _subject(task: Mapping[str, Any]) -> str:
    """What a task is about: one of several data sets, or the task itself."""
    return task.get("dataset", task["name"])
