"""Write the curves, scores and configs of runs, sweeps and suites into one HTML page."""

import os
import sys

from bertjax.commands import _flags

GROUP = "Evaluate"

EPILOG = """\
examples:
  bertjax report runs/bert runs/modernbert
  bertjax report runs/masking_rate --output masking_rate.html       a sweep
  bertjax report runs/bert runs/glue --output bert.html             a run and its GLUE suite
  bertjax report gs://bucket/runs/roberta --output gs://bucket/roberta.html

The page works without a network: curves of training and held-out metrics over steps, tokens or
hours; tables of runs, which sort by a click, with their state, newest and best metrics, costs and
the config fields in which they differ; scores with median and spread over seeds; configs, and the
commands that started the runs. Runs may be unfinished; the runs are only read.
"""


def main(argv: list[str]) -> None:
    """Writes the page."""
    arguments = parser().parse_args(argv)
    os.environ["JAX_PLATFORMS"] = "cpu"
    from bertjax.reports import page

    data = page.write(arguments.runs, arguments.output)
    for run in data["runs"]:
        if run["note"]:
            print(f"{run['path']}: {run['note']}", file=sys.stderr)
    print(f"{arguments.output}: {data['summary']}")


def parser() -> _flags.Parser:
    """Returns the parser of the command line."""
    parser = _flags.Parser("bertjax report", __doc__, EPILOG)
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="the --workdir of a bertjax pretrain, finetune, sweep or suite",
    )
    parser.add_argument(
        "--output",
        default="report.html",
        metavar="FILE",
        help="HTML file, which is replaced if it exists",
    )
    return parser
