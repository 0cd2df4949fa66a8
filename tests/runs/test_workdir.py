"""Workdirs: claiming, config changes, locks, foreign files."""

import contextlib
import fcntl
import json
import subprocess
import sys

import pytest

from bertjax.errors import UserError
from bertjax.io import files as io_files
from bertjax.runs.workdir import claim, in_use, is_complete, write_summary

CONFIG = {
    "seed": 0,
    "num_train_steps": 100,
    "budget_seconds": 60.0,
    "log_every": 10,
    "keep_latest": 3,
    "model": {"name": "bert", "hidden_size": 128},
    "objectives": {"mlm": {"weight": 1.0}, "sentence_pair": {"weight": 1.0}},
    "mesh": {"data": 8, "fsdp": 1},
    "phases": ((10, 128), (5, 512)),
}


HOLD = """
import sys
from bertjax.runs.workdir import claim
held = claim(sys.argv[1], {})
print(flush=True)
sys.stdin.read()
"""


def test_checking_the_lock_does_not_modify_the_folder(tmp_path):
    assert not in_use(tmp_path / "absent")
    words = [sys.executable, "-c", HOLD, tmp_path]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, text=True, **pipes) as process:
        process.stdout.readline()
        (tmp_path / ".lock").chmod(0o444)
        assert in_use(tmp_path)
        process.stdin.close()
    assert not in_use(tmp_path)


def changed(**fields):
    return json.loads(json.dumps(CONFIG)) | fields


def train(folder, config):
    """Claim a folder and write the files of a run's first steps."""
    with claim(folder, config):
        (folder / "metrics.jsonl").write_text('{"step": 1}\n')


def test_claim_writes_the_config_in_its_own_order(tmp_path):
    with claim(tmp_path / "new" / "run", CONFIG):
        text = (tmp_path / "new" / "run" / "config.json").read_text()
    assert json.loads(text) == changed()
    assert list(json.loads(text)) == list(CONFIG)


def test_free_fields_may_change_and_the_newest_config_is_kept(tmp_path):
    train(tmp_path, CONFIG)
    longer = {"num_train_steps": 200, "budget_seconds": 90.0}
    later = changed(**longer, log_every=1, keep_latest=9, mesh={"fsdp": 4, "tensor": 2})
    later["tensorboard"] = True
    claim(tmp_path, later).release()
    assert json.loads((tmp_path / "config.json").read_text()) == later


def test_microbatches_of_a_phase_may_change(tmp_path):
    train(tmp_path, changed(data={"phases": [[60, 128, 16], [40, 512, 8]]}))
    claim(tmp_path, changed(data={"phases": [[60, 128, 16, 2], [40, 512, 8, 4]]})).release()
    longer = changed(data={"phases": [[60, 128, 16], [50, 512, 8, 2]]}, num_train_steps=110)
    claim(tmp_path, longer).release()
    with pytest.raises(UserError, match="phases"):
        claim(tmp_path, changed(data={"phases": [[60, 128, 16, 2], [50, 512, 4, 4]]}))


def test_corpora_and_tokenizer_may_move_but_not_change_their_shares(tmp_path):
    def fields(folder, share=0.6, **more):
        entries = [["a", f"{folder}/a", share], ["b", f"{folder}/b", [0.4, 0.5]]]
        data = {"corpus": f"{folder}/a", "mixture": entries, **more}
        return {"data": data, "tokenizer": {"path": f"{folder}/vocab"}}

    train(tmp_path, changed(**fields("old")))
    claim(tmp_path, changed(**fields("new"))).release()
    assert json.loads((tmp_path / "config.json").read_text()) == changed(**fields("new"))
    message = r'\(data.mixture: \[\["a", "new/a", 0.6\],.* got \[\["a", "other/a", 0.5\],[^:]*\):'
    with pytest.raises(UserError, match=message):
        claim(tmp_path, changed(**fields("other", share=0.5)))
    with pytest.raises(UserError, match=r"\(data.input: absent in the folder, got \["):
        claim(tmp_path, changed(**fields("new", input=["text"])))


def test_new_fields_that_are_off_are_no_difference(tmp_path):
    train(tmp_path, CONFIG)
    newer = changed(model=CONFIG["model"] | {"sandwich": False}, restarts=[], slack=0.0, path="")
    claim(tmp_path, newer).release()
    with pytest.raises(UserError, match=r"restarts: \[\] in the folder, got \[\[1e-05, 3\]\]"):
        train(tmp_path, newer | {"restarts": [[1e-5, 3]]})


@pytest.mark.parametrize(
    ("other", "captured"),
    [
        ({"seed": 1}, "seed: 0 in the folder, got 1"),
        ({"num_train_steps": 50}, "num_train_steps: 100 in the folder, got 50"),
        ({"model": {"name": "bert"}}, "model.hidden_size: 128 in the folder, got absent"),
        ({"extra": True}, "extra: absent in the folder, got true"),
        ({"budget_seconds": 59.0}, "budget_seconds: 60.0 in the folder, got 59.0"),
        (
            {"objectives": {"sentence_pair": {"weight": 1.0}, "mlm": {"weight": 1.0}}},
            'objectives, in order: ["mlm", "sentence_pair"] in the folder',
        ),
    ],
)
def test_another_config_is_refused_naming_the_fields(tmp_path, other, captured):
    train(tmp_path, CONFIG)
    before = (tmp_path / "config.json").read_bytes()
    with pytest.raises(UserError) as error:
        claim(tmp_path, changed(**other))
    assert captured in str(error.value)
    assert "another --workdir" in str(error.value)
    assert "\n" not in str(error.value)
    assert (tmp_path / "config.json").read_bytes() == before


def test_a_refused_start_leaves_no_config_behind(tmp_path):
    """Otherwise the folder would look like a run without checkpoints."""
    for before in (None, CONFIG):
        if before:
            claim(tmp_path, before).release()
        with pytest.raises(UserError, match="no such teacher"), claim(tmp_path, changed(seed=1)):
            raise UserError("no such teacher")
        path = tmp_path / "config.json"
        assert (json.loads(path.read_text()) if path.exists() else None) == (before and changed())


def refuse(folder, *names):
    """Write what a run writes before its first step, and other files; then raise."""
    for name in ("tokenizer", "tensorboard", "seed_0"):
        (folder / name).mkdir()
    (folder / "metrics.jsonl").open("a").close()
    for name in ("tokenizer/vocab.txt", *names):
        (folder / name).write_text("[PAD]")
    raise UserError("no such tracker")


@pytest.mark.parametrize("has_trained", [False, True])
def test_a_refused_start_leaves_the_folder_as_it_was(tmp_path, has_trained):
    folder = tmp_path / "runs" / "new"
    if has_trained:
        train(folder, CONFIG)
        (folder / ".lock").unlink()
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    with pytest.raises(UserError, match="no such tracker"), claim(folder, changed(log_every=1)):
        refuse(folder)
    assert {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")} == before
    if has_trained:
        with pytest.raises(UserError, match="another config"):
            claim(folder, changed(seed=1))
        assert set(tmp_path.rglob("*")) == before.keys()


def test_a_refused_start_removes_no_other_file(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(UserError, match="no such tracker"), claim(folder, CONFIG):
        refuse(folder, "job.log")
    assert list(tmp_path.rglob("*")) == [folder, folder / "job.log"]


def test_a_lock_file_that_a_refused_start_removes_is_not_used(tmp_path, monkeypatch):
    lockf = fcntl.lockf

    def remove_first(*arguments):
        monkeypatch.undo()
        (tmp_path / ".lock").unlink()
        lockf(*arguments)

    monkeypatch.setattr(fcntl, "lockf", remove_first)
    with claim(tmp_path, CONFIG):
        assert (tmp_path / ".lock").exists()


@pytest.mark.parametrize("trace", [None, "metrics.jsonl", "tensorboard/events", "seed_0/"])
def test_a_failed_first_start_does_not_claim_the_folder(tmp_path, trace):
    """If it ended with an error, or during compilation."""
    claim(tmp_path, CONFIG).release()
    if trace:
        path = tmp_path / trace
        path.parent.mkdir(exist_ok=True)
        path.mkdir() if trace.endswith("/") else path.touch()
    claim(tmp_path, changed(seed=1)).release()
    assert json.loads((tmp_path / "config.json").read_text())["seed"] == 1


@pytest.mark.parametrize(
    ("later", "is_the_same_run"),
    [
        ([[90, 128, 8], [30, 512, 2]], True),
        ([[90, 128, 8], [10, 512, 2], [5, 512, 4]], True),
        ([[90, 128, 8], [9, 512, 2]], False),
        ([[91, 128, 8], [10, 512, 2]], False),
        ([[90, 128, 8], [20, 256, 2]], False),
        ([[90, 128, 8]], False),
        ([], False),
    ],
)
def test_phases_can_be_prolonged(tmp_path, later, is_the_same_run):
    train(tmp_path, {"data": {"phases": [[90, 128, 8], [10, 512, 2]]}})
    expected = contextlib.nullcontext() if is_the_same_run else pytest.raises(UserError)
    with expected:
        claim(tmp_path, {"data": {"phases": later}}).release()


def test_many_differences_are_counted(tmp_path):
    train(tmp_path, {f"field{i}": i for i in range(9)})
    with pytest.raises(UserError, match="field5: 5 in the folder, got absent; and 3 more"):
        claim(tmp_path, {})


def test_a_folder_is_locked_by_one_process(tmp_path, root):
    script = f"from bertjax.runs.workdir import claim; claim({str(tmp_path)!r}, {{}}).release()"

    def other_process():
        command = [sys.executable, "-c", script]
        return subprocess.run(command, capture_output=True, text=True, cwd=root)

    with claim(tmp_path, {}):
        refused = other_process()
        assert refused.returncode == 1
        assert "is in use by another process" in refused.stderr
    assert other_process().returncode == 0


@pytest.mark.parametrize(
    ("name", "captured"),
    [
        ("texts/b.txt", "an input of this run"),
        ("texts/deep/a.txt", "an input of this run"),
        ("texts/other.txt", "got files that belong to no run: other.txt; choose a new"),
        ("texts/wiki_00", "got files that belong to no run: wiki_00;"),
        ("texts/model.safetensors", "got files that belong to no run: model.safetensors;"),
        ("texts/manifest.json", "got files that belong to no run: manifest.json;"),
        ("texts/bertjax_tokenizer.json", "is the folder of a tokenizer"),
        ("texts/unfinished/progress.json", "is the folder of a corpus"),
        ("bertjax_tokenizer.json", "which is the folder of a tokenizer"),
    ],
)
def test_a_folder_with_other_files_is_refused(tmp_path, name, captured):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("text")
    inputs = [str(tmp_path / "texts/**/[ab].txt"), "python-docs", "gs://bucket/*"]
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError) as error:
        claim(tmp_path / "texts", changed(data={"input": inputs}))
    assert captured in str(error.value)
    assert "\n" not in str(error.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_foreign_files_are_counted(tmp_path):
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text("text")
    with pytest.raises(UserError, match=r"no run: 0\.txt, 1\.txt, 2\.txt and 2 more; "):
        claim(tmp_path, CONFIG)


def test_the_folder_of_a_corpus_is_refused(tmp_path):
    (tmp_path / "corpus/tokenizer").mkdir(parents=True)
    for name in ("manifest.json", "tokenizer/bertjax_tokenizer.json"):
        (tmp_path / "corpus" / name).write_text("{}")
    for workdir in ("corpus", "corpus/run"):
        with pytest.raises(UserError, match="the folder of a corpus; choose a new"):
            claim(tmp_path / workdir, CONFIG)
    claim(tmp_path / "run", changed(data={"corpus": str(tmp_path / "corpus")})).release()


def test_files_of_schedulers_and_users_are_accepted(tmp_path):
    names = "slurm-7.out train.log log.txt nohup.out job.sh job.o123 sweep.py notes.md .gitignore"
    for name in names.split():
        (tmp_path / name).write_text("something")
    (tmp_path / "output.txt").touch()  # created by a shell that redirects the output
    (tmp_path / "logs").mkdir()
    claim(tmp_path, CONFIG).release()


def test_a_run_resumes_despite_files_added_later(tmp_path):
    train(tmp_path, CONFIG)
    (tmp_path / "notes.txt").write_text("something")
    claim(tmp_path, CONFIG).release()
    (tmp_path / ".lock").unlink()  # as after a copy without hidden files
    claim(tmp_path, CONFIG).release()


def test_the_url_of_a_bucket_is_refused():
    with pytest.raises(UserError, match="mount the bucket"):
        claim("gs://bucket/run", {})


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot create the folder"):
        claim(tmp_path / "file" / "run", {})


def test_an_invalid_config_json_is_named(tmp_path):
    train(tmp_path, {})
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"cannot read .*config\.json as JSON"):
        claim(tmp_path, {})


def test_the_summary_is_replaced_atomically(tmp_path):
    write_summary(tmp_path, {"steps": 1})
    write_summary(tmp_path, {"steps": 2, "mlm_loss": 1.5})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"steps": 2, "mlm_loss": 1.5}
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_a_full_disk_keeps_the_old_file(tmp_path, monkeypatch):
    io_files.write_text(tmp_path / "a.json", "old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(io_files.os, "fsync", full)
    with pytest.raises(UserError, match="the disk is full"):
        io_files.write_text(tmp_path / "a.json", "new")
    assert (tmp_path / "a.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_full_disks_are_recognised_however_they_are_wrapped():
    inner = ValueError("RESOURCE_EXHAUSTED: ... No space left on device [os_error_code='28']")
    outer = RuntimeError("commit failed")
    outer.__cause__ = inner
    assert io_files.is_disk_full(outer)
    assert io_files.is_disk_full(OSError(122, "Disk quota exceeded"))
    assert not io_files.is_disk_full(OSError(13, "Permission denied"))


def test_a_run_is_complete_by_its_steps_or_its_budget():
    summary = {"status": "complete", "steps": 70, "budget_seconds_spent": 61.0}
    assert is_complete(summary, 70)
    assert not is_complete(summary, 71)
    assert is_complete(summary, 100, budget_seconds=60.0)
    assert not is_complete(summary, 100, budget_seconds=90.0)
    assert not is_complete({**summary, "status": "running"}, 70)
    assert not is_complete(None, 70)
