"""Predict with a fine-tuned run: lines of the user in, one prediction a line out."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from bertjax import build, catalog, pretrained
from bertjax.errors import UserError
from bertjax.huggingface import heads as huggingface_heads
from bertjax.interfaces import Batch, Params, Tokenizer
from bertjax.pretrainer import Pretrainer
from bertjax.runs import examples, multitask
from bertjax.tasks.dataset import EncodingSpec, Line
from bertjax.train import evaluate, sharding

_LONGEST = 512
"""Of models that have no longest sequence, where no recipe tells one."""
_SHORTEST = 16


@dataclasses.dataclass(frozen=True)
class Predictor:
    """A fine-tuned model that is ready to be asked.

    Attributes:
      config: Of the run, of one task.
      tokenizer: Of the run.
      data: Where the recipe's paths begin.
      params: On the devices.
      step: From a batch to what the task says of its sequences.
      mesh: The devices.
    """

    config: ConfigDict
    tokenizer: Tokenizer
    data: str
    params: Params
    step: Callable[[Params, Batch], jax.Array]
    mesh: Mesh

    def ask(self, lines: Sequence[Line], batch_size: int) -> list[dict[str, Any]]:
        """What the model says of every line, in order.

        Raises:
          UserError: a line is not what the task reads.
        """
        config = self.config
        ask = catalog.load("tasks", config.task.name, "dataset").from_inputs
        read = _reading(config, self.tokenizer, -(-batch_size // self.mesh.size) * self.mesh.size)
        asked = ask(lines, self.data, config.task, config.data, read)
        batches = asked.batches
        rows = sharding.local_rows(batches.batch_size, self.mesh)
        numbered = batches.evaluation_batches(rows)
        found = evaluate.predict(self.step, self.params, numbered, batches.num_examples, self.mesh)
        return asked.answers(found)


def load(init: str, *, task: str = "", data: str = "", precision: str = "") -> Predictor:
    """Reads a fine-tuned run.

    Args:
      init: See `transfer.find`.
      task: Which one, of a run that learned several.
      data: Folder at which the recipe's paths begin, such as that of a knowledge graph.
      precision: As `config.model.precision`; empty: the run's.

    Raises:
      UserError: it is none, or did not keep its checkpoint.
    """
    run = pretrained.load(init)
    if "task" not in run.source.config:
        raise UserError(
            f"{run.source.run} has learned no task: give a run of bertjax finetune that kept its "
            "checkpoints (--config.keep_checkpoints=true), as in runs/mrpc/seed_0"
        )
    head, config = _of_one_task(run.config, task)
    if data and not ("knowledge" in config.data and config.data.knowledge):
        raise UserError(
            f"--data: got {data}, expected none, since the run's recipe has no knowledge graph; "
            "leave it out"
        )
    pretrainer = Pretrainer(run.encoder(precision), {head: build.task(config.task)})
    mesh = sharding.make_mesh({"data": -1, "fsdp": 1, "tensor": 1, "sequence": 1})
    whole = NamedSharding(mesh, PartitionSpec())
    return Predictor(
        config,
        run.tokenizer,
        data,
        jax.device_put(run.params("encoder", head), whole),
        _compiled(
            pretrainer, head, catalog.load("tasks", config.task.name, "dataset").OUTPUT, mesh
        ),
        mesh,
    )


def _of_one_task(config: ConfigDict, task: str) -> tuple[str, ConfigDict]:
    """The name of a task's head, and the config of that task alone."""
    if not multitask.is_multitask(config):
        name = huggingface_heads.name_of(config)
        if task not in ("", name):
            raise UserError(f"--task: got {task}, expected {name}, the only task of the run")
        return config.task.name, config
    names = config.task.dataset.split(multitask.BETWEEN)
    if task not in names:
        raise UserError(f"the run learned {', '.join(names)}: name one of these with --task")
    return task, multitask.alone(config, task)


def _compiled(
    pretrainer: Pretrainer, head: str, answers: str, mesh: Mesh
) -> Callable[[Params, Batch], jax.Array]:
    def method(module: Pretrainer, batch: Batch) -> jax.Array:
        task = getattr(module, head)
        encoded = module.encoder(batch, train=False)
        if answers == "predict":
            return task.predict(module.encoder, encoded, batch)
        return task.scores(module.encoder, encoded, batch, train=False)[0]

    def step(params: Params, batch: Batch) -> jax.Array:
        return pretrainer.apply({"params": params}, batch, method=method)

    return jax.jit(step, out_shardings=NamedSharding(mesh, PartitionSpec()))


def _reading(config: ConfigDict, tokenizer: Tokenizer, batch_size: int) -> EncodingSpec:
    max_length = build.positions(config.model)
    if "max_seq_length" in config.data:
        max_length = min(max_length, config.data.max_seq_length)
    length = int(min(max_length, _LONGEST))
    lengths = [_SHORTEST << power for power in range(8)]
    return EncodingSpec(
        tokenizer=tokenizer,
        max_seq_length=length,
        cls_last=build.cls_last(config.model),
        max_chars_per_word=examples.max_chars_per_word(config.model),
        takes_positions="max_position_embeddings" in config.model,
        batch_size=batch_size,
        eval_batch_size=batch_size,
        padded_lengths=tuple(lengths),
        batches_per_group=1,
        max_train_examples=0,
        seed=0,
    )
