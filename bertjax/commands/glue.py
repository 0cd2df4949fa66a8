"""Fine-tune an encoder on all of GLUE and put its scores beside the published ones."""

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from bertjax.errors import UserError

EPILOG = """\
examples:
  bertjax glue --init runs/bert --data glue --workdir runs/glue
  bertjax glue --init runs/mini --data glue --workdir runs/glue --recipe small --seeds 5
  bertjax glue --init runs/roberta --data glue --workdir runs/glue --recipe roberta --from_mnli
  bertjax glue --init runs/bert --data glue --workdir runs/glue --tasks cola,rte --grid --parallel 4

Each task is a `bertjax finetune` of its own, in WORKDIR/TASK, with the recipe of configs/glue.py; a
--config.FIELD=VALUE goes to all of them. --grid tries batches of 16 and 32, rates of 5e-5, 3e-5 and
2e-5 and 2 to 4 epochs, each with all seeds, and reports the best by the median dev score, chosen on
the scores that it reports. With --from_mnli, RTE, STS-B and MRPC begin with what MNLI taught. With
--parallel, so many run side by side: each with one GPU, or its share of the cores.

In the workdir: table.md and results.json (medians, spread, seeds, the average as the leaderboard
takes it), and submission.zip for the evaluation server. The same command goes on where it was
stopped.
"""


def main(argv: list[str]) -> None:
    """Runs what is missing, then prints the table."""
    from bertjax.config import split_overrides
    from bertjax.train.workdir import claim

    rest, overrides = split_overrides(argv)
    arguments = _parser().parse_args(rest)
    for name in ("seeds", "parallel"):
        if getattr(arguments, name) < 1:
            raise UserError(f"--{name} {getattr(arguments, name)}: wanted 1 or more")
    from bertjax import glue_suite

    workdir = pathlib.Path(arguments.workdir)
    tasks = glue_suite.tasks_of(arguments.data, arguments.tasks)
    if arguments.from_mnli and "mnli" not in tasks:
        raise UserError("--from_mnli wants mnli among the tasks: name it, or leave --from_mnli out")
    _check_recipes(arguments, tasks, overrides)
    runs = glue_suite.plan(tasks, workdir, grid=arguments.grid)
    settled = {name: getattr(arguments, name) for name in ("init", "recipe", "grid", "from_mnli")}
    settled["overrides"] = [f"{name}={value}" for name, value in overrides]
    with claim(workdir, {"glue": settled}), _sigterm_as_control_c():
        failed = _Suite(arguments, overrides, len(runs)).run(runs)
        scores = glue_suite.collect(runs)
        if scores:
            _write(workdir, scores)
    if failed:
        names = ", ".join(str(run.workdir / _LOG) for run in failed)
        raise UserError(f"{len(failed)} of {len(runs)} runs failed, the others are done: {names}")


@contextlib.contextmanager
def _sigterm_as_control_c() -> Iterator[None]:
    """A suite that is asked to end asks its runs to: they save, and the same command goes on."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


_LOG = "finetune.log"


class _Suite:
    """The processes of a suite."""

    def __init__(self, arguments: argparse.Namespace, overrides: Sequence, total: int):
        self._arguments, self._overrides, self._total = arguments, overrides, total
        self._started, self._lock, self._stopped = 0, threading.Lock(), False
        self._free = list(range(arguments.parallel))
        self._processes: set[subprocess.Popen] = set()

    def run(self, runs: Sequence) -> list:
        """Runs what is not finished; returns what failed."""
        from bertjax import glue_suite

        later = glue_suite.FROM_MNLI if self._arguments.from_mnli else ()
        first = [run for run in runs if run.task not in later]
        rest = [run for run in runs if run.task in later]
        failed = self._all(first, lambda run: self._arguments.init)
        if not rest:
            return failed
        mnli = [score for score in glue_suite.collect(first) if score.run.task == "mnli"]
        if not mnli:
            return [*failed, *rest]
        taught = str(glue_suite.best_seed(mnli[0].run))
        return failed + self._all(rest, lambda run: taught)

    def _all(self, runs: Sequence, init: Callable) -> list:
        with concurrent.futures.ThreadPoolExecutor(self._arguments.parallel) as pool:
            futures = {pool.submit(self._one, run, init(run)): run for run in runs}
            try:
                ended = [(futures[f], f.result()) for f in concurrent.futures.as_completed(futures)]
            except KeyboardInterrupt:
                self._stop()
                pool.shutdown(cancel_futures=True)
                print("stopped; the same command goes on from there", file=sys.stderr)
                raise SystemExit(130) from None
        return [run for run, success in ended if not success]

    def _stop(self) -> None:
        self._stopped = True
        for process in list(self._processes):
            process.terminate()

    def _one(self, run, init: str) -> bool:
        """Whether the run is finished in the end."""
        from bertjax.glue_suite import folder

        done = run.results()
        if done and done["seeds"] == self._arguments.seeds:
            return True
        with self._lock:
            self._started += 1
            number, share = self._started, self._free.pop()
        name = " ".join(filter(None, [run.task, folder(run.point)]))
        try:
            started = time.monotonic()
            run.workdir.mkdir(parents=True, exist_ok=True)
            with open(run.workdir / _LOG, "ab") as log:
                print(f"[{number}/{self._total}] {name}", file=sys.stderr, flush=True)
                status = self._wait(self._command(run, init), share, log)
            seconds = time.monotonic() - started
            return self._told(run, name, status, seconds)
        finally:
            with self._lock:
                self._free.append(share)

    def _wait(self, command: list[str], share: int, log) -> int:
        if self._stopped:
            return 130
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=_environment(share, self._arguments.parallel),
        )
        _take_cores(process.pid, share, self._arguments.parallel)
        self._processes.add(process)
        try:
            return process.wait()
        finally:
            self._processes.discard(process)

    def _command(self, run, init: str) -> list[str]:
        arguments = self._arguments
        config = f"{arguments.config}:{run.task}" + (arguments.recipe and f",{arguments.recipe}")
        words = ["finetune", "--config", config, "--init", init, "--data", arguments.data]
        words += ["--workdir", str(run.workdir), "--seeds", str(arguments.seeds)]
        if arguments.from_mnli and run.task == "mnli":
            words.append("--config.keep_checkpoints=true")
        fields = [*run.point, *self._overrides]
        return [
            *(sys.executable, "-m", "bertjax", *words),
            *(f"--config.{name}={value}" for name, value in fields),
        ]

    def _told(self, run, name: str, status: int, seconds: float) -> bool:
        if self._stopped:
            return False
        results = run.results() if status == 0 else None
        if results is None:
            text = (run.workdir / _LOG).read_text(encoding="utf-8", errors="replace").strip()
            last = text.splitlines()[-1] if text else "it said nothing"
            print(f"{name}: failed ({last})", file=sys.stderr, flush=True)
            return False
        score = results["over_seeds"]["dev/score"]
        spread = f"{score['median']:.4f} ({score['min']:.4f} to {score['max']:.4f})"
        print(f"{name}: dev/score {spread}, {seconds:.0f} s", file=sys.stderr, flush=True)
        return True


def _environment(share: int, parallel: int) -> dict[str, str]:
    """A GPU for each of several runs, where there are any."""
    environment = dict(os.environ)
    if parallel > 1 and environment.get("JAX_PLATFORMS", "") != "cpu":
        named = environment.get("CUDA_VISIBLE_DEVICES")
        cards = named.split(",") if named else [str(n) for n in range(_count_gpus())]
        if cards:
            environment["CUDA_VISIBLE_DEVICES"] = cards[share % len(cards)]
    return environment


def _count_gpus() -> int:
    return len(list(pathlib.Path("/proc/driver/nvidia/gpus").glob("*")))


def _take_cores(process: int, share: int, parallel: int) -> None:
    """Gives a run, before it has threads, its share of the cores, where the system lets it."""
    if parallel == 1 or not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.suppress(ProcessLookupError):  # it may have ended already
        os.sched_setaffinity(process, cores[share::parallel] or [cores[share % len(cores)]])


def _check_recipes(arguments: argparse.Namespace, tasks: Sequence[str], overrides) -> None:
    """Refuses a mistake in any recipe before the first run starts."""
    from bertjax.config import load_config

    for task in tasks:
        recipe = f"{arguments.config}:{task}" + (arguments.recipe and f",{arguments.recipe}")
        load_config(recipe, overrides)


def _write(workdir: pathlib.Path, scores: Sequence) -> None:
    from bertjax import glue_suite, suite_table
    from bertjax.train.files import write_json

    table = suite_table.rows(scores)
    (workdir / "table.md").write_text(suite_table.markdown(table), encoding="utf-8")
    missing = glue_suite.submission(workdir / "submission.zip", scores)
    write_json(
        workdir / "results.json", suite_table.content(scores) | {"missing_of_server": missing}
    )
    print(suite_table.text(table))
    if missing:
        told = f"{workdir / 'submission.zip'} lacks what the server wants too: {', '.join(missing)}"
        print(told, file=sys.stderr)
    print(json.dumps({"average": glue_suite.average(scores), "tasks": len(scores)}))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bertjax glue",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--init", required=True, metavar="RUN", help="as of bertjax finetune")
    add("--data", required=True, help="folder of GLUE, or tfds:DIR")
    add("--workdir", required=True, help="folder for what comes out")
    add("--tasks", default="", help="names with commas between (default: all that are in the data)")
    add("--seeds", type=int, default=3, metavar="N", help="of each run (default 3)")
    add("--grid", action="store_true", help="try batches, rates and numbers of epochs")
    add("--recipe", default="", help="small, tiny, roberta, albert or electra (default: BERT's)")
    add("--from_mnli", action="store_true", help="RTE, STS-B and MRPC begin with MNLI's encoder")
    add("--parallel", type=int, default=1, metavar="N", help="runs side by side (default 1)")
    add("--config", default="configs/glue.py", help="where the recipes are")
    return parser
