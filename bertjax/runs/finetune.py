"""Fine-tune a pretrained encoder on a task: train each seed, score it, write the results.

finetune    recipe, pretrained run, data, workdir -> result of each seed
train_seed  Job, seed -> result, or None if it was interrupted
"""

import contextlib
import dataclasses
import functools
import json
import time
from typing import Any

import jax
from ml_collections import ConfigDict

from bertjax import build
from bertjax import config as configs
from bertjax.errors import Interrupted
from bertjax.io import storage
from bertjax.runs import bucket_sync, finetune_job, multitask, results, session
from bertjax.runs import teachers as runs_teachers
from bertjax.runs.finetune_job import MUTABLE_FIELDS, Job
from bertjax.runtime import distributed, host
from bertjax.runtime.interrupt import Interrupt
from bertjax.train import epochs
from bertjax.train.checkpoint.folder import Retention
from bertjax.train.checkpoint.manager import Checkpoints
from bertjax.train.sharding import local_rows


def finetune(
    recipe: ConfigDict,
    *,
    init: str,
    data: str,
    workdir: str,
    num_seeds: int = 1,
    log: session.Log = lambda line: None,
) -> list[results.Result]:
    """Fine-tunes seeds `recipe.seed`, `recipe.seed + 1`, ...; a finished seed is not trained again.

    Writes `results.json`, `summary.json` and the median seed's `predictions/` after every seed.

    >>> config = bertjax.load_config("glue:rte,tiny", {"num_train_epochs": 1})
    >>> (seed,) = bertjax.finetune(config, init="runs/bert", data="data", workdir="rte")
    >>> sorted(seed["scores"])
    ['dev/accuracy', 'dev/score']

    Args:
      recipe: A config with a `task`, such as one of `configs/glue.py`.
      init: RUN, RUN@STEP, RUN@best, a Hugging Face folder, or `random:` before one.
      data: Folder of the task's examples.
      workdir: Folder for results.
      num_seeds: Number of seeds.
      log: Logs one line.

    Raises:
      UserError: an input is missing, or does not match the others.
      Interrupted: Ctrl-C or SIGTERM; a checkpoint is saved, the same call resumes the seed.
    """
    host.tune_for_cpu()
    configs.check_type(recipe)
    build.check(recipe)
    distributed.check_identical(config=configs.fingerprint(recipe), workdir=workdir)
    start = time.monotonic()
    folder = bucket_sync.local_folder(workdir, with_checkpoints=True)
    prepare = multitask.prepare if multitask.is_multitask(recipe) else finetune_job.prepare
    job = prepare(recipe, init=init, data=data, workdir=folder)
    # The config has fingerprints of both; hosts may read copies of their own.
    inputs = {"model or data": configs.fingerprint(job.config)}
    distributed.check_identical("prepared data", **inputs)
    log(finetune_job.description(job, num_seeds))
    properties = _run_properties(job, init)
    finished = []
    with (
        session.lock_workdir(folder, json.loads(configs.to_json(job.config)), MUTABLE_FIELDS),
        session.open_session(folder, workdir, log) as interrupt,
    ):
        for seed in range(recipe.seed, recipe.seed + num_seeds):
            result = results.read(job.folder(seed)) or train_seed(job, seed, interrupt, log)
            if result is None:
                raise Interrupted(f"stopped in seed {seed}", interrupt.exit_code)
            scores = "  ".join(f"{name} {value:.4f}" for name, value in result["scores"].items())
            log(f"seed {seed}, epoch {result['chosen_epoch']}: {scores}")
            finished.append(result)
            properties["seconds"] = time.monotonic() - start
            is_complete = len(finished) == num_seeds
            results.write(folder, job.config, finished, properties, complete=is_complete)
    return finished


def _run_properties(job: Job, init: str) -> dict[str, Any]:
    """Properties of the run that `results.json` records."""
    properties = {
        "task": job.dataset.name,
        "init": {"name": init, **job.config.init},
        "examples": finetune_job.sizes(job.dataset),
    }
    left_out = {split: list(names) for split, names in job.dataset.left_out.items() if names}
    return properties | ({"left_out": left_out} if left_out else {})


def _early_stopping(config: ConfigDict, seed: int, log: session.Log) -> epochs.EarlyStopping | None:
    patience = build.run_field(config, "early_stopping_patience")
    if not patience:
        return None
    return epochs.EarlyStopping(results.SCORE, patience, lambda line: log(f"seed {seed}: {line}"))


def train_seed(
    job: Job, seed: int, interrupt: Interrupt, log: session.Log = lambda line: None
) -> results.Result | None:
    """Trains a seed to its last epoch and scores it; None if it was interrupted."""
    folder = job.folder(seed)
    storage.make_folder(folder)
    if jax.process_index() == 0 and not (job.workdir / "tokenizer").exists():
        job.tokenizer.save(str(job.workdir / "tokenizer"))
    config, trainer = job.config_of_seed(seed), job.trainer(seed)
    train_split = dataclasses.replace(job.dataset.batches["train"], seed=seed)
    rows = local_rows(train_split.batch_size, job.mesh)
    evaluation = epochs.EvaluateEpochs(
        train_split.batches_per_epoch,
        functools.partial(job.evaluate, seed, interrupt),
        _early_stopping(config, seed, log),
    )
    provenance = {
        "config": configs.fingerprint(config, ignoring=MUTABLE_FIELDS),
        **runs_teachers.provenance(job.teachers),
    }
    keep_best = int(config.choose_epoch == "best")
    session.fit(
        config,
        trainer,
        folder=folder,
        checkpoints=Checkpoints(
            folder,
            keep=Retention(latest=1, best=keep_best, metric=results.SCORE, mode="max"),
            provenance=provenance,
        ),
        checkpoint_intervals=[
            train_split.batches_per_epoch,
            build.run_field(config, "checkpoint_every"),
        ],
        init_state=functools.partial(finetune_job.init_state, job, trainer),
        batches=lambda step: contextlib.nullcontext(train_split.training_batches(step, rows)),
        example_batch=job.example_batch,
        evaluation=evaluation,
        interrupt=interrupt,
        log=lambda line: log(f"seed {seed}: {line}"),
    )
    if interrupt.stopped:
        return None
    return results.finish(folder, config, evaluation.epochs)
