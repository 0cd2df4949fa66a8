"""Teachers for distillation: trained models that objectives of a run use.

In a config, an objective's field `teacher` names a run. The objective receives a function that
makes the teacher's module. Its parameters are in Linen's collection "frozen", separate from the
training state: no gradient, no optimizer state, and not part of checkpoints, which store their
fingerprint and refuse another teacher.
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
from bertjax.huggingface import run_cache
from bertjax.interfaces import Tokenizer
from bertjax.layers.attention_kernels import with_kernel
from bertjax.pretrainer import Pretrainer
from bertjax.tokenizers.tokenizer import load as load_tokenizer
from bertjax.train.checkpoint import origin as checkpoint_origin
from bertjax.train.checkpoint import trees


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A trained model whose checkpoint is located but not yet loaded.

    Attributes:
      origin: Its checkpoint.
      of: Objective or task of its run whose head is used; "" for the encoder alone.
      attention_kernel: Kernel of its attention (`layers/attention_kernels.py`).
    """

    origin: checkpoint_origin.PretrainedSource
    of: str
    attention_kernel: str = ""

    @property
    def make(self) -> Callable[[], Pretrainer]:
        """A function that makes the module: an encoder that returns hidden states, and the head."""
        run = pretrained.Pretrained(self.origin)
        encoder = run.encoder(output_hidden_states=True)
        if hasattr(encoder, "attention_kernel"):  # chosen for the student
            encoder = with_kernel(encoder, self.attention_kernel)
        objectives = {self.of: run.objective(self.of)} if self.of else {}
        return functools.partial(Pretrainer, encoder, objectives, parent=None)

    def read(self) -> PyTree:
        """Loads its parameters as numpy arrays."""
        parts = ["encoder", self.of] if self.of else ["encoder"]
        return pretrained.Pretrained(self.origin).load_params(*parts)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of its parameters."""
        return trees.fingerprint(self.read())

    def check(self, config: ConfigDict, tokenizer: Tokenizer | None, max_length: int) -> None:
        """Raises if the teacher's vocabulary, maximum length or task does not match the student's.

        Args:
          config: Config of the student's run.
          tokenizer: Its tokenizer; None if only vocabulary sizes are compared.
          max_length: Maximum length of its sequences in tokens.

        Raises:
          UserError: naming the difference.
        """
        self._check_tokens(config, tokenizer)
        limit = build.positions(self.origin.config["model"])
        if max_length > limit:
            raise UserError(
                f"sequences of {max_length} tokens: expected at most {limit}, the maximum of the "
                f"teacher {self.origin.run}; set --config.data.max_seq_length={limit}"
            )
        tasks = [each["task"] for each in (self.origin.config, config) if "task" in each]
        if len(tasks) == 2 and config.task.name == self.of:
            teacher, student = map(_subject, tasks)
            if teacher != student:
                raise UserError(
                    f"the teacher {self.origin.run} is fine-tuned on {teacher}, this run on "
                    f"{student}: name a teacher that is fine-tuned on {student}"
                )

    def _check_tokens(self, config: ConfigDict, tokenizer: Tokenizer | None) -> None:
        models = self.origin.config["model"], config.model
        teacher, student = (model.get("vocab_size", 0) for model in models)
        folder = self.origin.run / "tokenizer"
        known = tokenizer is not None and folder.exists()
        if teacher != student or (
            known and load_tokenizer(folder).fingerprint != tokenizer.fingerprint
        ):
            raise UserError(
                f"the teacher {self.origin.run} has another tokenizer ({teacher:,} tokens) than "
                f"this run ({student:,}): set --config.tokenizer.path={folder}"
            )


Teachers = Mapping[str, Teacher]
"""Teachers by the name of the objective that uses them."""


def find(sections: Mapping[str, Mapping[str, Any]], attention_kernel: str = "") -> Teachers:
    """The teachers that `config.objectives` names.

    Args:
      sections: `config.objectives`.
      attention_kernel: Kernel of their attention (`layers/attention_kernels.py`).

    Raises:
      UserError: a teacher is missing, or is not a trained run.
    """
    found = {}
    for name, fields in sections.items():
        module = catalog.load("objectives", name).Objective
        if "teacher" in {field.name for field in dataclasses.fields(module)}:
            of = getattr(module, "of", "")
            teacher = _find(name, {"teacher": "", "of": of, **fields})
            found[name] = dataclasses.replace(teacher, attention_kernel=attention_kernel)
    return found


def objectives(
    sections: Mapping[str, Mapping[str, Any]],
    tokenizer_fields: Mapping[str, Any],
    teachers: Teachers,
) -> dict[str, Callable[[], Any]]:
    """Like `build.objectives`, with the teacher's module in each field `teacher`."""
    modules = {name: {"teacher": teacher.make} for name, teacher in teachers.items()}
    return build.objectives(
        {name: {**fields, **modules.get(name, {})} for name, fields in sections.items()},
        tokenizer_fields,
    )


def frozen_params(teachers: Teachers) -> dict[str, PyTree]:
    """Loads the parameters of all teachers, in the structure of the collection "frozen"."""
    return {name: {"teacher": {"params": teacher.read()}} for name, teacher in teachers.items()}


def shapes(teachers: Teachers) -> dict[str, PyTree]:
    """Shapes of `frozen_params`, for compiling ahead of time."""

    def shape(array):
        return jax.ShapeDtypeStruct(array.shape, array.dtype)

    return jax.tree.map(shape, frozen_params(teachers))


def provenance(teachers: Teachers) -> dict[str, str]:
    """Fingerprints of the teachers, stored in the checkpoints of a run."""
    return {f"teacher_of_{name}": teacher.fingerprint for name, teacher in teachers.items()}


def _find(name: str, fields: Mapping[str, Any]) -> Teacher:
    if not fields["teacher"]:
        raise UserError(
            f"objective {name} requires a teacher: set --config.objectives.{name}.teacher=RUN, the "
            "folder of a trained run, RUN@STEP or RUN@best"
        )
    try:
        origin = run_cache.resolve(fields["teacher"])
    except UserError as error:
        raise UserError(f"the teacher of objective {name}: {error}") from None
    if origin.checkpoint is None:
        raise UserError(
            f"the teacher of objective {name}: got {fields['teacher']}, expected a trained run"
        )
    return Teacher(origin, fields["of"])


def _subject(task: Mapping[str, Any]) -> str:
    """The dataset of a task, or the name of a task that has only one."""
    return task.get("dataset", task["name"])
