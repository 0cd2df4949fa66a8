"""Export a pretrained or fine-tuned run to a folder that transformers opens.

find          RUN, RUN@STEP, RUN@best -> Source: a checkpoint and its metadata
write         Source -> folder: weights, config, tokenizer and a model card
with_pooling  Source, pooling -> how its embeddings are computed, to write them too

Multipliers of a muP model (`layers/width_scaling.py`) become part of the weights: models of
transformers have none.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np

import bertjax
from bertjax import build
from bertjax.errors import UserError
from bertjax.huggingface import architecture as architectures
from bertjax.huggingface import heads as huggingface_heads
from bertjax.huggingface import model, parts, sentence_transformers
from bertjax.huggingface import tokenizer as huggingface_tokenizer
from bertjax.huggingface.model_card import Card
from bertjax.huggingface.sentence_transformers import EmbeddingSettings
from bertjax.io import copies, storage
from bertjax.io.files import read_json, write_text
from bertjax.layers import width_scaling
from bertjax.pretrained import tokenizer_folder
from bertjax.tokenizers.tokenizer import load as load_tokenizer
from bertjax.train.checkpoint import folder as checkpoint_folder
from bertjax.train.checkpoint import origin as checkpoint_origin
from bertjax.train.checkpoint import restore, trees

Params = Mapping[str, np.ndarray]

_QUERY = "/attention/query/"
_BEFORE_OUTPUT = "mlm/transform/norm/"
"""The LayerNorm of the only head with tied embeddings that exported models with muP have."""

_LIBRARY, _PIPELINE_TAG = "sentence-transformers", "sentence-similarity"
"""That library, and the task of its models, as the Hugging Face hub names them."""


@dataclasses.dataclass(frozen=True)
class Source:
    """A checkpoint to export.

    Attributes:
      origin: The run, its config and the checkpoint.
      results: The `results.json` of a fine-tuning run.
      seed: The seed of a fine-tuning run.
    """

    origin: checkpoint_origin.PretrainedSource
    results: Mapping[str, Any] | None = None
    seed: int | None = None


@dataclasses.dataclass(frozen=True)
class Export:
    """A summary of an export.

    Attributes:
      class_name: The class in transformers.
      parameters: Number of parameters.
      left_out: Parts of the run that were not exported, and why.
      remote_code: Whether the class is not in transformers, but in code that belongs in the folder.
    """

    class_name: str
    parameters: int
    left_out: Mapping[str, str]
    remote_code: bool


def find(name: str) -> Source:
    """Finds a checkpoint: of a pretraining run, or of a fine-tuning run the median seed or another.

    Args:
      name: RUN, RUN@STEP or RUN@best; RUN/seed_N for another seed than the median.

    Raises:
      UserError: there is no such run or checkpoint, or it is damaged.
    """
    if name.startswith("random:"):
        raise UserError(f"{name} has untrained weights: specify the folder of a trained run")
    folder, _, which = name.partition("@")
    run = storage.to_path(folder)
    is_seed = run.name.startswith("seed_") and (run.parent / "results.json").is_file()
    workdir = run.parent if is_seed else run
    if not (workdir / "results.json").is_file():
        return Source(checkpoint_origin.resolve(name))
    if which:
        raise UserError(
            f"{name}: got @{which}, expected the name of a fine-tuning run alone; its choose_epoch "
            f"selects the epoch, leave out @{which}"
        )
    results = read_json(workdir / "results.json")
    seed = int(run.name.removeprefix("seed_")) if is_seed else results["predictions"]["seed"]
    return _seed(workdir, results, seed)


def _seed(workdir: pathlib.Path, results: Mapping[str, Any], seed: int) -> Source:
    """The checkpoint of the selected epoch of a seed."""
    result = next((each for each in results["each_seed"] if each["seed"] == seed), None)
    if result is None:
        raise UserError(f"{workdir} has no finished seed {seed}: specify one of its results.json")
    step = next(e["step"] for e in result["epochs"] if e["epoch"] == result["chosen_epoch"])
    checkpoint = workdir / f"seed_{seed}" / "checkpoints" / str(step)
    defect = (
        checkpoint_folder.find_defect(checkpoint) if checkpoint.is_dir() else "it does not exist"
    )
    if defect:
        raise UserError(
            f"{checkpoint} cannot be loaded ({defect}): checkpoints of finished seeds are kept "
            "with --config.keep_checkpoints=true"
        )
    config = read_json(workdir / "config.json")
    return Source(checkpoint_origin.PretrainedSource(workdir, checkpoint, config), results, seed)


def with_pooling(
    source: Source,
    pooling: str = "",
    *,
    normalize: bool | None = None,
    max_length: int = 0,
    prompts: Mapping[str, str | None] = MappingProxyType({}),
) -> EmbeddingSettings:
    """Returns how a run embeds texts, or is to embed them; see `sentence_transformers.choose`.

    Raises:
      UserError: sentence-transformers has no such pooling for the model.
    """
    run = architectures.with_model_defaults(source.origin.config)
    settings = sentence_transformers.choose(
        run, pooling=pooling, normalize=normalize, max_length=max_length, prompts=prompts
    )
    sentence_transformers.check(run, settings)
    return settings


def write(
    source: Source,
    target: pathlib.Path,
    scores: Sequence[str] = (),
    *,
    generator: bool = False,
    embedding: EmbeddingSettings | None = None,
) -> Export:
    """Writes the folder, atomically.

    Args:
      source: The checkpoint.
      target: A new folder.
      scores: Folders of fine-tuning runs of this checkpoint, for the scores of the card.
      generator: Whether to export the generator of an ELECTRA instead of the discriminator.
      embedding: How texts are embedded: the folder is one of sentence-transformers, with the
        encoder alone.

    Raises:
      UserError: transformers has no such model, or the scores are those of another one.
    """
    if generator and scores:
        raise UserError(
            "--scores: got fine-tuned runs together with --generator, expected none, as they "
            "fine-tune the discriminator; leave out one of the two"
        )
    run, checkpoint = (
        architectures.with_model_defaults(source.origin.config),
        source.origin.checkpoint,
    )
    model_type = architectures.model_type_of(run)
    architecture = architectures.load(model_type)
    if embedding or ("task" in run and architectures.head_class(run["task"]["name"]).embeds):
        run = {**{key: run[key] for key in run if key != "task"}, "objectives": {}}
    own_task = run["task"]["name"] if "task" in run else ""
    if own_task:
        run = architectures.with_exchanged_task(run)
    _check_task(source, run, model_type)
    if embedding and architectures.attribute(architecture, "REMOTE_CODE"):
        raise UserError(
            f"--format: got sentence-transformers for a {run['model']['name']}, expected "
            "transformers: its released code gives vectors before the last LayerNorm; leave "
            "--format out"
        )
    tokenizer = load_tokenizer(tokenizer_folder(source.origin))
    params = trees.flatten_names(restore.load_weights(checkpoint))
    if own_task:
        params = architectures.rename_task(params, own_task, run["task"]["name"])
    if embedding:
        params = {name: array for name, array in params.items() if name.startswith("encoder/")}
    provenance = _provenance(source, tokenizer.fingerprint)
    if generator:
        run, params = _generator(architecture, run, params, source)
        provenance["tower"] = "generator"
    run, params = _fold_multipliers(run, params)
    released, left_out = parts.to_hf(model_type, run, params, tokenizer, str(checkpoint))
    rows = _score_rows([source.results] if source.results else [])
    rows += _score_rows([_results_of(name, source) for name in scores])
    card = _card(target.name, released, provenance, rows, source.origin.config)
    if embedding:
        card = dataclasses.replace(card, pipeline_tag=_PIPELINE_TAG, library=_LIBRARY)
    with copies.new_folder(target, "config.json") as folder:
        model.write(folder, released)
        huggingface_tokenizer.write(
            folder,
            tokenizer,
            max_length=build.positions(run["model"]),
            has_segments=_has_segments(architecture, run),
            cls_last=build.cls_last(run["model"]),
            generates=architectures.generates(run),
        )
        if embedding:
            sentence_transformers.write(folder, embedding, run["model"]["hidden_size"])
        write_text(folder / "README.md", card.text())
    return Export(card.class_name, card.parameters, left_out, card.remote_code)


def _card(
    name: str,
    released: model.HFModel,
    provenance: Mapping[str, str],
    rows: Sequence[tuple[str, ...]],
    config: Mapping[str, Any],
) -> Card:
    """The model card of an export; see `Card` for the arguments."""
    (class_name,) = released.config["architectures"]
    header = ("fine-tuned on", "metric", "median", "lowest", "highest", "seeds")
    heads = _heads_of(released.architecture, class_name)
    remote_code = architectures.attribute(released.architecture, "REMOTE_CODE")
    return Card(
        name=name,
        model_type=released.model_type,
        class_name=class_name,
        pipeline_tag="" if remote_code else architectures.pipeline_tag(heads),
        parameters=trees.num_parameters(dict(released.arrays)),
        provenance=provenance,
        scores=[header, *rows] if rows else (),
        config=config,
        remote_code=remote_code,
    )


def _heads_of(architecture: ModuleType, class_name: str) -> tuple[str, ...]:
    return next(heads for heads, name in architecture.CLASSES.items() if name == class_name)


def _has_segments(architecture: ModuleType, run: Mapping[str, Any]) -> bool:
    """Whether the model reads `token_type_ids`."""
    has_segments = architectures.attribute(architecture, "HAS_SEGMENTS")
    return run["model"].get("type_vocab_size", 0) > 1 if has_segments is None else has_segments


def _generator(
    architecture: ModuleType, run: Mapping[str, Any], params: Params, source: Source
) -> tuple[Mapping[str, Any], Params]:
    """The config and parameters of a run's generator as a separate model.

    Raises:
      UserError: the run has no generator.
    """
    split = getattr(architecture, "generator", lambda *_: None)
    found = split(run, params)
    if found is None:
        raise UserError(
            f"{source.origin.run} has no generator: leave --generator out; pretraining runs of "
            "configs/electra.py have one"
        )
    return found


def _check_task(source: Source, run: Mapping[str, Any], model_type: str) -> None:
    """Refuses a run with the head of a task that no class of transformers has."""
    classes = architectures.load(model_type).CLASSES
    if "task" not in run or any(run["task"]["name"] in heads for heads in classes):
        return
    known = [head for heads in classes if (head := architectures.task_of(heads))]
    raise UserError(
        f"{source.origin.run} has a head of task {run['task']['name']}, which no class of "
        f"transformers for {model_type!r} has (with a head of a task there are "
        f"{', '.join(known) or 'none'}); export the run that it was initialised from"
    )


def _provenance(source: Source, fingerprint: str) -> dict[str, str]:
    """The provenance of a model, for its card."""
    run, record = source.origin.config, checkpoint_folder.read_record(source.origin.checkpoint)
    provenance = {"steps": f"{record.step:,}"}
    if "imported" in run:
        provenance["imported from"] = run["imported"]["name"]
    if "task" in run:
        glue = "GLUE " if run["task"]["name"] == "glue" else ""
        provenance["task"] = f"{glue}{huggingface_heads.name_of(run)}"
    if source.seed is not None:
        provenance["seed"] = str(source.seed)
        start = run["init"]
        provenance["initialised from"] = f"step {start['step']:,}, sha256 {start['encoder']}"
    provenance |= {name: f"{value:.6g}" for name, value in record.metrics.items() if "/" in name}
    provenance["corpus, sha256"] = record.provenance.get("corpus", "not recorded")
    provenance["tokenizer, sha256"] = fingerprint
    provenance["written by"] = f"bertjax {bertjax.__version__}"
    return provenance


def _results_of(name: str, source: Source) -> Mapping[str, Any]:
    """The results of a fine-tuning run, which must be initialised from this encoder."""
    path = storage.to_path(name) / "results.json"
    if not path.is_file():
        raise UserError(
            f"--scores {name} has no results.json: expected the --workdir of a fine-tuning run"
        )
    results = read_json(path)
    found, expected = results["init"]["encoder"], source.origin.description()["encoder"]
    if found != expected:
        raise UserError(
            f"--scores {name}: got a run initialised from the encoder with sha256 {found[:16]}, "
            f"expected {expected[:16]}, the exported one; leave it out"
        )
    return results


def _score_rows(each_results: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (
            results["task"],
            metric,
            f"{spread['median']:.4f}",
            f"{spread['min']:.4f}",
            f"{spread['max']:.4f}",
            str(results["seeds"]),
        )
        for results in each_results
        for metric, spread in results["over_seeds"].items()
    ]


def _fold_multipliers(
    run: Mapping[str, Any], params: Mapping[str, np.ndarray]
) -> tuple[Mapping[str, Any], Mapping[str, np.ndarray]]:
    """Returns config and parameters of a model with the same outputs and without muP.

    The factor of the queries becomes part of their kernel and bias, and that of the tied output
    layer part of the LayerNorm before it.
    """
    if not run["model"].get("mup_base_width"):
        return run, params
    model = {name: value for name, value in run["model"].items() if not name.startswith("mup_")}
    encoder = build.encoder(run["model"])
    query = np.float32(width_scaling.query_scale(encoder))
    output = np.float32(1 / width_scaling.width_ratio(encoder))

    def scale(name: str, array: np.ndarray) -> np.ndarray:
        if _QUERY in name:
            return array * query
        return array * output if name.startswith(_BEFORE_OUTPUT) else array

    return {**run, "model": model}, {name: scale(name, array) for name, array in params.items()}
