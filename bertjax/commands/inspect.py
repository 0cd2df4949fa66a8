"""Describe a run, a checkpoint or a corpus.

Read-only, and runs on the CPU, also for checkpoints of other devices.
"""

import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from bertjax import catalog
from bertjax.commands import _flags
from bertjax.constraints import NonNegativeInt, constraint_action
from bertjax.errors import UserError

GROUP = "Evaluate"

EPILOG = """\
examples:
  bertjax inspect runs/bert           status, metrics and checkpoints of a run
  bertjax inspect runs/bert@best      the best checkpoint
  bertjax inspect runs/bert@3000      the checkpoint of step 3000
  bertjax inspect corpora/wiki        counts, sources, and examples as text
  bertjax inspect runs/bert@3000 --json | jq .parameters_sha256

Two checkpoints with equal parameters_sha256 and optimizer_sha256 are the same
state.
"""

_EXPECTED = (
    "expected the --workdir of a run, a checkpoint (RUN@STEP, RUN@best or RUN/checkpoints/STEP) "
    "or a prepared corpus"
)
_EXAMPLE_LENGTH = 64


def main(argv: list[str]) -> None:
    """Prints the description of a folder as text or as JSON."""
    arguments = parser().parse_args(argv)
    os.environ["JAX_PLATFORMS"] = "cpu"
    description = describe(arguments.path, arguments.examples)
    if arguments.json:
        print(json.dumps(description, indent=2, ensure_ascii=False))
    else:
        print("\n".join(_lines(description)))


def parser() -> _flags.Parser:
    """Returns the parser of the command line."""
    parser = _flags.Parser("bertjax inspect", __doc__, EPILOG)
    parser.add_argument(
        "path",
        metavar="RUN|CHECKPOINT|CORPUS",
        help="the --workdir of a run; RUN@STEP, RUN@best or a checkpoint's folder; or a corpus",
    )
    _flags.add_json(parser, "print one JSON object")
    parser.add_argument(
        "--examples",
        action=constraint_action(NonNegativeInt),
        default=3,
        metavar="N",
        help="number of examples of a corpus to print",
    )
    return parser


def describe(source: str, num_examples: int = 3) -> dict[str, Any]:
    """Describes a run, a checkpoint or a corpus as plain values.

    Args:
      source: The workdir of a run, RUN@STEP, RUN@best, the folder of a checkpoint, or a corpus.
      num_examples: Number of examples of a corpus.

    Raises:
      UserError: `source` is none of these, or damaged.
    """
    from bertjax.io import storage
    from bertjax.train.checkpoint import folder as checkpoint_folder
    from bertjax.train.checkpoint import origin

    path = storage.to_path(source)
    if not path.exists() and "@" in source:
        return _checkpoint(origin.resolve(source).checkpoint)
    if not path.is_dir():
        reason = "a file" if path.is_file() else "missing"
        raise UserError(f"{source} is {reason}: {_EXPECTED}")
    if (path / "manifest.json").is_file():
        return _corpus(path, num_examples)
    if any((path / name).exists() for name in (checkpoint_folder.RECORD, checkpoint_folder.STATE)):
        return _checkpoint(path)
    if (path / "config.json").is_file():
        return _run(path)
    raise UserError(f"no manifest.json, checkpoint.json or config.json in {source}: {_EXPECTED}")


def _checkpoint(path: pathlib.Path) -> dict[str, Any]:
    from bertjax.train.checkpoint import folder as checkpoint_folder
    from bertjax.train.checkpoint.restore import load_numpy, load_weights
    from bertjax.train.checkpoint.trees import fingerprint, num_parameters

    defect = checkpoint_folder.find_defect(path)
    if defect:
        raise UserError(f"{path} is damaged ({defect}); inspect another checkpoint of the run")
    record = checkpoint_folder.read_record(path)
    params = load_weights(path)
    return {
        "kind": "checkpoint",
        "path": str(path),
        "step": record.step,
        "written_by": f"bertjax {record.version}",
        "parameters": num_parameters(params),
        "parameters_sha256": fingerprint(params),
        "optimizer_sha256": fingerprint(load_numpy(path, "opt_state")),
        "bytes": checkpoint_folder.size(path),
        "metrics": dict(record.metrics),
        "provenance": dict(record.provenance),
        "arrays": dict(record.arrays),
    }


def _run(path: pathlib.Path) -> dict[str, Any]:
    from bertjax.io.files import read_json
    from bertjax.runs import bucket_sync
    from bertjax.runs.workdir import in_use
    from bertjax.train.checkpoint import folder as checkpoint_folder
    from bertjax.train.checkpoint import origin
    from bertjax.train.metric_records import read_metrics

    checkpoints = checkpoint_folder.metrics(path / "checkpoints")
    folder = bucket_sync.local_folder(path)
    config = read_json(folder / "config.json")
    origin.refuse_released(path, config)
    if not config:
        raise UserError(f"{path}: config.json is empty: {_EXPECTED}")
    ranks = checkpoint_folder.rank_steps(
        checkpoints, config.get("best_metric", ""), config.get("best_mode", "min")
    )
    latest = max(checkpoints, default=None)
    summary = read_json(folder / "summary.json") if (folder / "summary.json").exists() else None
    return {
        "kind": "run",
        "path": str(path),
        "status": _status(latest, config, in_use(folder), summary),
        "latest_checkpoint": latest,
        "best_checkpoint": ranks[0] if ranks else None,
        "checkpoints": [
            {"step": step, "metrics": dict(metrics)} for step, metrics in checkpoints.items()
        ],
        "last_metrics": _last_metrics(read_metrics(folder)),
        "summary": summary,
        "config": config,
    }


def _status(
    latest: int | None, config: Mapping[str, Any], running: bool, summary: dict | None
) -> str:
    from bertjax.runs.workdir import is_complete

    if running:
        return "running"
    total = config.get("num_train_steps")
    if total is None:
        return "not running" if summary is None else "complete"
    budget = config.get("budget_seconds", 0.0)
    if is_complete(summary, total, budget) or (latest or 0) >= total:
        return "complete"
    if summary is not None and "seeds" in summary:
        return f"stopped; {summary['seeds']} seed(s) finished, the same command resumes the others"
    if latest is None:
        return f"stopped before its first checkpoint, of {total} steps"
    return f"stopped at step {latest} of {total}; the same command resumes it"


def _last_metrics(records: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the newest value of every metric, and the newest step."""
    newest: dict[str, Any] = {}
    for record in records:
        newest.update(record)
    return newest


def _corpus(path: pathlib.Path, num_examples: int) -> dict[str, Any]:
    from bertjax.corpus import reader
    from bertjax.io import copies

    folder = copies.local_copy(path)
    corpus = reader.open_corpus(folder, _first_split(folder))
    return {
        "kind": "corpus",
        "path": str(path),
        "manifest": corpus.manifest,
        "examples": _examples(corpus, folder / "tokenizer", num_examples),
    }


def _first_split(path: pathlib.Path) -> str:
    from bertjax.io.files import read_json

    splits = list(read_json(path / "manifest.json").get("splits", ()))
    return "train" if "train" in splits or not splits else splits[0]


def _examples(corpus: Any, tokenizer_folder: pathlib.Path, count: int) -> list[str]:
    from bertjax.data.format import ExampleSpec
    from bertjax.data.sequence_template import SequenceTemplate
    from bertjax.tokenizers.tokenizer import load

    tokenizer = load(tokenizer_folder)
    spec = ExampleSpec(
        corpus,
        {"pair": "none", "short_seq_prob": None},
        seed=0,
        max_seq_length=_EXAMPLE_LENGTH,
        specials=SequenceTemplate.from_tokenizer(tokenizer),
    )
    examples = catalog.load("data/formats", "full-sentences").Format.examples(spec)
    return [tokenizer.decode(example["input_ids"]) for example in examples.preview(count)]


def _lines(description: Mapping[str, Any]) -> Iterator[str]:
    """Yields the description as text: a title, then fields, tables and sections."""
    yield f"{description['kind']} {description['path']}"
    for name, value in description.items():
        if name in ("kind", "path") or value is None:
            continue
        if name == "arrays":
            yield "arrays:"
            yield from _tree(value)
        elif name == "checkpoints":
            yield "checkpoints:"
            yield from _checkpoint_table(value, description["best_checkpoint"])
        elif name == "examples":
            yield "examples:"
            yield from (f"  {number}. {text}" for number, text in enumerate(value, 1))
        elif isinstance(value, Mapping):
            yield f"{name}:"
            # The config in a summary is that of the run, which is printed in another section.
            hidden = ("guesses", "config") if name == "summary" else ()
            yield from _format_fields({key: value[key] for key in value if key not in hidden}, 1)
        else:
            yield f"{name}: {_text(value)}"


def _checkpoint_table(checkpoints: list[dict[str, Any]], best: int | None) -> Iterator[str]:
    """Yields a row of losses for each checkpoint; RUN@STEP has all metrics of one."""
    names = list(dict.fromkeys(name for entry in checkpoints for name in entry["metrics"]))
    columns = [name for name in names if name.rpartition("/")[2] == "loss"]
    rows = [["step", *columns]]
    for entry in checkpoints:
        values = (entry["metrics"].get(name, "") for name in columns)
        rows.append([f"{entry['step']:,}", *map(_text, values)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    marks = ["", *("  best" if entry["step"] == best else "" for entry in checkpoints)]
    for row, mark in zip(rows, marks, strict=True):
        yield "  " + "  ".join(map(str.rjust, row, widths)) + mark


def _tree(arrays: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yields array names as an indented tree, with dtypes and shapes."""
    shown: list[str] = []
    for name in sorted(arrays):
        *folders, leaf = name.split("/")
        for depth, folder in enumerate(folders):
            if shown[: depth + 1] != folders[: depth + 1]:
                yield f"{'  ' * (depth + 1)}{folder}/"
        shown = folders
        array = arrays[name]
        yield f"{'  ' * (len(folders) + 1)}{leaf}  {array['dtype']} {array['shape']}"


def _format_fields(values: Mapping[str, Any], depth: int) -> Iterator[str]:
    """Yields a field per line, with the values in one column, and sections below their names."""
    width = max((len(name) for name in values), default=0) + 1
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield f"{'  ' * depth}{name}:"
            yield from _format_fields(value, depth + 1)
        else:
            yield f"{'  ' * depth}{f'{name}:':<{width}} {_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else json.dumps(value, ensure_ascii=False)
