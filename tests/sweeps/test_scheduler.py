"""Runs of a sweep as child processes: order, logs, cores, errors of the parent."""

import os
import sys

import pytest

from bertjax.sweeps import processes as sweeps_processes
from bertjax.sweeps.processes import Job


def job(tmp_path, name, program):
    command = (sys.executable, "-c", program)
    return Job(name, command, tmp_path / name, tmp_path / name / "log")


def run(jobs, parallel):
    begun, ended = [], {}
    signal = sweeps_processes.run(
        jobs,
        parallel,
        begun=lambda job: begun.append(job.name),
        ended=lambda job, status, seconds: ended.update({job.name: status}),
    )
    assert signal is None
    return begun, ended


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_every_process_has_its_cores_and_its_log(tmp_path):
    program = "import os, time; time.sleep(0.2); print(sorted(os.sched_getaffinity(0)))"
    jobs = [job(tmp_path, name, program) for name in "abc"]
    begun, ended = run(jobs, parallel=2)
    assert begun == ["a", "b", "c"]
    assert ended == {"a": 0, "b": 0, "c": 0}
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        assert [job.last_words(0) for job in jobs[:2]] == [str(cores[::2]), str(cores[1::2])]


def test_an_error_here_leaves_no_process_behind(tmp_path, monkeypatch):
    program = "import time; time.sleep(60)"
    processes = []

    def begun(job):
        raise OSError("no space left")

    def started(*arguments, made=sweeps_processes._start, **options):
        processes.append(made(*arguments, **options))
        return processes[-1]

    monkeypatch.setattr(sweeps_processes, "_start", started)
    with pytest.raises(OSError, match="no space"):
        sweeps_processes.run([job(tmp_path, "a", program)], 1, begun=begun, ended=print)
    assert processes[0].returncode is not None
