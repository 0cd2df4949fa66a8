"""Question: how fast an accelerator trains BERT and ModernBERT with each attention kernel.

    python experiments/speed.py --kernels xla cudnn --output experiments/speed/h100.json

Each measurement is a process of `bertjax bench` in bfloat16, so that the memory of one does not
limit the next. BERT's recipe drops attention weights, which no fused kernel supports: `recipe` is
the config as it is, and every kernel is measured without this dropout.

Complete measurements in --output are not repeated. The table is printed at the end.
"""

import argparse
import json
import pathlib
import subprocess
import sys
from typing import Any

from bertjax.io import files as io_files

SHAPES = (
    ("bert:base", 128, 256),
    ("bert:base", 512, 64),
    ("bert:large", 128, 128),
    ("bert:large", 512, 32),
    ("modernbert:base", 1024, 32),
    ("modernbert:base", 8192, 4),
)
"""Config, tokens of a sequence and sequences of a batch."""
RECIPE = "recipe"
NO_DROPOUT = "--config.model.attention_probs_dropout_prob=0.0"


def main() -> None:
    """Measures what is missing and prints the table."""
    arguments = _parser().parse_args()
    output = pathlib.Path(arguments.output)
    rows = json.loads(output.read_text(encoding="utf-8")) if output.exists() else []
    for name, length, batch in SHAPES:
        for variant in (RECIPE, *arguments.kernels):
            key = {"config": name, "max_seq_length": length, "batch_size": batch}
            key["variant"] = variant
            if name in arguments.configs and not any(key.items() <= row.items() for row in rows):
                rows.append(_measure(name, length, batch, variant) | key)
                io_files.write_atomic(output, f"{json.dumps(rows, indent=1)}\n".encode())
    for row in rows:
        speed = row.get("tokens_per_second")
        utilisation = row.get("model_flops_utilisation")
        print(
            f"{row['config']:15} {row['batch_size']:4} x {row['max_seq_length']:4}  "
            f"{row['variant']:18}"
            + (f"{speed:10,.0f} tokens/s" if speed else f"  {row['failure'][:60]}")
            + (f"  MFU {utilisation:5.1%}" if utilisation else "")
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernels", nargs="+", default=["xla"], metavar="NAME")
    names = list(dict.fromkeys(name for name, *_ in SHAPES))
    parser.add_argument("--configs", nargs="+", default=names, choices=names, metavar="CONFIG")
    parser.add_argument("--output", required=True, metavar="FILE")
    return parser


def _measure(name: str, length: int, batch: int, variant: str) -> dict[str, Any]:
    """Runs one measurement in a process."""
    command = [sys.executable, "-m", "bertjax", "bench", "--json", "--config", name]
    command += ["--config.data.phases=()", "--config.data.microbatches=1"]
    command += [f"--config.data.max_seq_length={length}", f"--config.data.batch_size={batch}"]
    command.append("--config.model.precision=bfloat16")
    if variant != RECIPE:
        command += [NO_DROPOUT, f"--config.mesh.attention_kernel={variant}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return {"failure": f"exit code {done.returncode}"}
    measured = json.loads(done.stdout)
    (phase,) = measured.pop("phases")
    if "out_of_memory" in phase:
        return {"failure": phase["out_of_memory"]}
    return {**measured, **phase}


if __name__ == "__main__":
    main()
