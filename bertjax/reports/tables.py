"""Tables of a report: runs with metrics, costs and differing config fields; scores over seeds."""

import datetime
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from bertjax.reports.collect import FINE_TUNING, PRETRAINING, ReportedRun, flatten
from bertjax.reports.curves import TRAINING, last_values, records_of, split_of
from bertjax.sweeps.table import NO_VALUE
from bertjax.train.report import GOODPUT

STATES: Mapping[str, str] = MappingProxyType(
    {
        "done": "finished",
        "running": "running",
        "failed": "failed",
        "incomplete": "interrupted",
        "waiting": "not started",
    }
)
"""State of `sweeps.progress` -> its name in a report."""

Cell = dict[str, Any]
"""`{"text", "value"}`: the displayed text and the sort key (null, also for NaN and infinity, sorts
last); `"title"` has the whole text of a shortened one."""

Table = dict[str, Any]
"""`{"title", "columns", "runs", "rows"}`: columns are `{"name", "group"}`, `runs` the number of the
run of each row, and rows lists of cells. Many differing config fields of few runs are not columns:
they are rows of `"differences"`, `{"header", "rows"}`, with the name of the field in front."""

_MAX_VALUE_LENGTH = 40
_MAX_FIELD_COLUMNS = 8


def run_tables(runs: Sequence[ReportedRun], names: Sequence[str]) -> list[Table]:
    """A table of the runs of each kind.

    Args:
      runs: The runs.
      names: The name of each run.
    """
    tables = []
    for kind in (PRETRAINING, FINE_TUNING):
        numbers = [number for number, run in enumerate(runs) if run.kind == kind]
        if numbers:
            some = [runs[number] for number in numbers]
            tables.append(_run_table(kind, some, numbers, [names[number] for number in numbers]))
    return tables


def _run_table(
    kind: str, runs: Sequence[ReportedRun], numbers: Sequence[int], names: Sequence[str]
) -> Table:
    fields = [flatten(run.config) for run in runs]
    differ = find_differing(fields)
    transposed = len(differ) > max(_MAX_FIELD_COLUMNS, len(runs))
    groups = {
        "run": [_run_cells(run, name) for run, name in zip(runs, names, strict=True)],
        "metrics": _metric_cells(runs),
        "costs": [_cost_cells(run) for run in runs],
        "config": [
            {} if transposed else {name: _value(values, name) for name in differ}
            for values in fields
        ],
    }
    columns = [
        {"name": name, "group": group} for group, cells in groups.items() for name in cells[0]
    ]
    rows = [
        [cell for cells in parts for cell in cells.values()]
        for parts in zip(*groups.values(), strict=True)
    ]
    # A column without any value, such as MFU on an unknown device, is left out.
    shown = [n for n in range(len(columns)) if any(row[n]["text"] != NO_VALUE for row in rows)]
    table = {
        "title": kind.capitalize(),
        "columns": [columns[n] for n in shown],
        "runs": list(numbers),
        "rows": [[row[n] for n in shown] for row in rows],
    }
    if transposed:
        table["differences"] = {
            "header": ["config field", *names],
            "rows": [
                [_text(name), *(_value(values, name) for values in fields)] for name in differ
            ],
        }
    return table


def _run_cells(run: ReportedRun, name: str) -> dict[str, Cell]:
    step, steps = run.progress.step, run.progress.steps
    return {
        "run": _text(name),
        "state": _text(state(run)) | ({"title": run.note} if run.note else {}),
        "steps": _cell(f"{step:,}" if steps in (None, step) else f"{step:,} / {steps:,}", step),
    }


def state(run: ReportedRun) -> str:
    """The state of a run in words."""
    imported = "imported" in run.config and run.progress.state == "incomplete"
    return "imported" if imported else STATES[run.progress.state]


def _metric_cells(runs: Sequence[ReportedRun]) -> list[dict[str, Cell]]:
    """The best value of each run's main metric, and last values of the metrics of evaluations."""
    last = [last_values(run) for run in runs]
    names = dict.fromkeys(name for values in last for name in values)
    main = {run.metric for run in runs}
    evaluated = [
        name
        for name in names
        if name == "loss" or any(split_of(run, name)[0] != TRAINING for run in runs)
    ]
    best = f"best {main.copy().pop()}" if len(main) == 1 else "best"
    found = []
    for run, values in zip(runs, last, strict=True):
        cells = {best: _number(run.progress.best)}
        if len(main) > 1:
            cells["metric"] = _text(run.metric)
        found.append(cells | {name: _number(values.get(name)) for name in evaluated})
    return found


def _cost_cells(run: ReportedRun) -> dict[str, Cell]:
    tokens = sum(_newest(records, "tokens") for _, records in run.parts)
    seconds = sum(_newest(records, "seconds") for _, records in run.parts)
    speed, utilisation = _median(run, "tokens_per_second"), _median(run, "model_flops_utilisation")
    goodput = _median(run, GOODPUT)
    updated = run.progress.updated
    return {
        "tokens": _cell(f"{tokens:,}", tokens) if tokens else _cell(NO_VALUE),
        "time": _cell(duration(seconds), seconds) if seconds else _cell(NO_VALUE),
        "tokens/s": _cell(NO_VALUE) if speed is None else _cell(f"{speed:,.0f}", speed),
        "MFU": _percent(utilisation),
        "goodput": _percent(goodput),
        "device": _text(device(run)),
        "last write": _cell(NO_VALUE)
        if updated is None
        else _cell(f"{datetime.datetime.fromtimestamp(updated):%Y-%m-%d %H:%M}", updated),
    }


def _newest(records: Sequence[Mapping[str, Any]], name: str) -> float:
    return next((r[name] for r in reversed(records) if r.get(name) is not None), 0)


def _median(run: ReportedRun, name: str) -> float | None:
    values = [record[name] for record in records_of(run) if record.get(name) is not None]
    return statistics.median(values) if values else None


def device(run: ReportedRun) -> str:
    """The devices of the newest start."""
    return device_of(run.starts[-1]) if run.starts else NO_VALUE


def device_of(start: Mapping[str, Any]) -> str:
    """The devices of a record of `starts.jsonl`: `8 x TPU v5 lite`."""
    count = start["num_devices"]
    return start["device"] if count == 1 else f"{count} x {start['device']}"


def duration(seconds: float) -> str:
    """A time as `2 d 3:04 h`, `1:23 h`, `12 min` or `34 s`."""
    days, rest = divmod(round(seconds), 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    if days or hours:
        return f"{f'{days} d ' if days else ''}{hours}:{minutes:02d} h"
    return f"{minutes} min" if minutes >= 2 else f"{60 * minutes + rest} s"


def find_differing(fields: Sequence[Mapping[str, Any]]) -> list[str]:
    """Finds the fields that differ between configs, or are absent in some."""
    names = dict.fromkeys(name for values in fields for name in values)
    return [name for name in names if len({_json(values, name) for values in fields}) > 1]


def _json(fields: Mapping[str, Any], name: str) -> str | None:
    return json.dumps(fields[name], sort_keys=True) if name in fields else None


def _value(fields: Mapping[str, Any], name: str) -> Cell:
    if name not in fields:
        return _cell(NO_VALUE)
    value = fields[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    cell = _cell(text or '""', value if is_number else text)
    if len(text) > _MAX_VALUE_LENGTH:
        cell |= {"text": f"{text[:_MAX_VALUE_LENGTH]}…", "title": text}
    return cell


def score_table(runs: Sequence[ReportedRun], names: Sequence[str]) -> Table | None:
    """Median and spread over seeds of all scores of fine-tuning runs; None if there are none."""
    columns = ("run", "task", "metric", "median", "lowest", "highest", "seeds", "each seed")
    numbers, rows = [], []
    for number, (run, name) in enumerate(zip(runs, names, strict=True)):
        for metric, spread in (run.results or {}).get("over_seeds", {}).items():
            each = [result["scores"][metric] for result in run.results.get("each_seed", ())]
            cells = [_text(name), _text(run.results.get("task", NO_VALUE)), _text(metric)]
            cells += [_number(spread[key]) for key in ("median", "min", "max")]
            seeds = run.results["seeds"]
            cells += [_cell(str(seeds), seeds), _text("  ".join(_number(v)["text"] for v in each))]
            numbers.append(number)
            rows.append(cells)
    if not rows:
        return None
    header = [{"name": name, "group": ""} for name in columns]
    return {"title": "Scores over seeds", "columns": header, "runs": numbers, "rows": rows}


def _cell(text: str, value: Any = None) -> Cell:
    # JSON has no NaN and no infinity.
    is_sortable = not isinstance(value, float) or math.isfinite(value)
    return {"text": text, "value": value if is_sortable else None}


def _text(text: str) -> Cell:
    return _cell(text, None if text == NO_VALUE else text)


def _number(value: float | None) -> Cell:
    if value is None:
        return _cell(NO_VALUE)
    return _cell(f"{value:.4g}" if abs(value) >= 1000 else f"{value:.4f}", value)


def _percent(value: float | None) -> Cell:
    return _cell(NO_VALUE) if value is None else _cell(f"{value:.1%}", value)
