"""Metrics as event files of TensorBoard."""

import os
import subprocess
import sys


def test_events_can_be_read_back(tmp_path, run_here):
    run_here(tmp_path, "--steps", 6, "--tensorboard")
    (events,) = (tmp_path / "tensorboard").iterdir()
    content = events.read_bytes()
    assert b"held_out/loss" in content
    assert b"tokens_per_second" in content


def test_pytorch_is_not_imported(tmp_path, command_environment):
    """Importing it takes seconds at every start, if it is installed."""
    (tmp_path / "torch.py").write_text("raise SystemExit('PyTorch was imported')")
    path = os.pathsep.join([str(tmp_path), command_environment["PYTHONPATH"]])
    program = (
        "import sys, types\n"
        "from bertjax.train.writers import TensorBoard\n"
        "board = TensorBoard(sys.argv[1])\n"
        "board.on_train_begin(types.SimpleNamespace(first_step=0), None, {})\n"
        "board.on_record(1, {'loss': 2.5})\n"
        "board.close()\n"
        "assert 'torch' not in sys.modules\n"
        "import torch\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=command_environment | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    # The program's own last line finds the file above, hence the hook did not.
    assert done.stderr == "PyTorch was imported\n"
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1
