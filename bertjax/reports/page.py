"""Write a report as one HTML file, which needs no network: style, script and data are inside."""

import datetime
import html
import importlib.resources
import json
import pathlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import bertjax
from bertjax.io import copies, storage
from bertjax.io.files import write_output
from bertjax.reports import tables
from bertjax.reports.collect import Collection, ReportedRun, collect
from bertjax.reports.curves import curves, split_of

_ASSETS = importlib.resources.files("bertjax.reports") / "assets"
_SCRIPTS = ("elements.js", "plot.js", "tables.js", "page.js")
"""Parts of one script, in order."""
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


def write(paths: Sequence[str], output: str) -> dict[str, Any]:
    """Reads runs, sweeps and suites and writes their report; returns its data.

    Args:
      paths: Workdirs: paths or URLs.
      output: The HTML file, a path or a URL; an existing one is replaced.

    Raises:
      UserError: a folder holds no run, or the file cannot be written.
    """
    storage.check_file(storage.to_path(output))
    data = content(collect(paths))
    with copies.upload_file(output) as file:
        write_output(pathlib.Path(file), render(data))
    return data


def content(found: Collection) -> dict[str, Any]:
    """The content of a report, as plain values for JSON."""
    names = name_runs([run.path for run in found.runs])
    scores = tables.score_table(found.runs, names)
    now = datetime.datetime.now().astimezone()
    parts = curves(found.runs)
    num_runs = "1 run" if len(found.runs) == 1 else f"{len(found.runs)} runs"
    states = Counter(tables.state(run) for run in found.runs)
    return {
        "written": f"{now:%Y-%m-%d %H:%M %Z}",
        "version": bertjax.__version__,
        "summary": f"{num_runs}: {', '.join(f'{count} {name}' for name, count in states.items())}",
        "metric": _first_metric(parts, [split_of(run, run.metric)[1] for run in found.runs]),
        "runs": [_run(run, name) for run, name in zip(found.runs, names, strict=True)],
        "parts": parts,
        "tables": tables.run_tables(found.runs, names),
        "scores": [scores] if scores else [],
        "suites": [
            {
                "title": title,
                "header": list(header),
                "rows": [[{"text": cell} for cell in row] for row in rows],
            }
            for title, (header, *rows) in found.tables
        ],
    }


def _run(run: ReportedRun, name: str) -> dict[str, Any]:
    starts = [dict(start) | {"device": tables.device_of(start)} for start in run.starts]
    return {
        "name": name,
        "path": run.path,
        "kind": run.kind,
        "state": tables.state(run),
        "note": run.note,
        "details": _describe_finetuning(run),
        "command": run.command,
        "starts": starts,
        "config": json.dumps(run.config, indent=2, ensure_ascii=False),
    }


def _describe_finetuning(run: ReportedRun) -> list[str]:
    """Describes the initialisation of a fine-tuning and the epoch of its scores."""
    if run.results is None:
        return []
    details = []
    if "init" in run.results:
        details.append(f"initialised from {run.results['init']['name']}")
    if "epoch_rule" in run.results:
        details.append(f"scores of {run.results['epoch_rule']['meaning']}")
    return details


def _first_metric(parts: Sequence[Mapping[str, Any]], main: Sequence[str]) -> str:
    """The metric that the plot shows first: one that most runs have, if possible a main one.

    Args:
      parts: The curves.
      main: The main metrics of the runs, without their splits.
    """
    has = {(part["run"], curve["metric"]) for part in parts for curve in part["curves"]}
    count = Counter(metric for _, metric in has)
    ranked = sorted(count, key=lambda name: (-count[name], name not in main, name != "loss"))
    return ranked[0] if ranked else ""


def name_runs(paths: Sequence[str]) -> list[str]:
    """The shortest ends of paths that distinguish them.

    Args:
      paths: Distinct paths or URLs.
    """
    parts = [path.rstrip("/").split("/") for path in paths]
    lengths = [1] * len(parts)

    def ends() -> list[str]:
        return ["/".join(part[-length:]) for part, length in zip(parts, lengths, strict=True)]

    while True:
        names = ends()
        count = Counter(names)
        longer = [
            n for n, name in enumerate(names) if count[name] > 1 and lengths[n] < len(parts[n])
        ]
        if not longer:
            return names
        for n in longer:
            lengths[n] += 1


def render(data: Mapping[str, Any]) -> str:
    """The page as HTML."""
    values = {
        "title": html.escape(f"bertjax report, {data['summary']}"),
        "style": _asset("page.css"),
        "script": "\n".join(map(_asset, _SCRIPTS)),
        "data": embed(data),
    }
    return _PLACEHOLDER.sub(lambda match: values[match[1]], _asset("page.html"))


def embed(data: Mapping[str, Any]) -> str:
    """JSON that may stand in a `<script>` element: no value can end it or start a comment."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")
