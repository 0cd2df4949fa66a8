"""Question: how fast an accelerator trains BERT and ModernBERT with each attention kernel.

    python experiments/speed.py --kernels xla cudnn --pytorch --output experiments/speed/h100.json

Each measurement is a process of `bertjax bench` in bfloat16, so that the memory of one does not
limit the next. BERT's recipe drops attention weights, which no fused kernel supports: `recipe` is
the config as it is, and every kernel is measured without this dropout. `--pytorch` measures
transformers' BERT of the same shape on the same device: masked LM at 15% of the tokens and the
sentence pair, autocast to bfloat16, fused AdamW, scaled dot-product attention with dropout.

Complete measurements in --output are not repeated. The table is printed at the end.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time
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
RECIPE, PYTORCH, COMPILED = "recipe", "pytorch", "pytorch compiled"
NO_DROPOUT = "--config.model.attention_probs_dropout_prob=0.0"


def main() -> None:
    """Measures what is missing and prints the table."""
    arguments = _parser().parse_args()
    output = pathlib.Path(arguments.output)
    rows = json.loads(output.read_text(encoding="utf-8")) if output.exists() else []
    variants = [RECIPE, *arguments.kernels]
    for name, length, batch in SHAPES:
        compared = [PYTORCH, COMPILED] if arguments.pytorch and name.startswith("bert:") else []
        for variant in (*variants, *compared):
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
    parser.add_argument("--pytorch", action="store_true", help="measure transformers as well")
    parser.add_argument("--output", required=True, metavar="FILE")
    return parser


def _measure(name: str, length: int, batch: int, variant: str) -> dict[str, Any]:
    """Runs one measurement in a process."""
    if variant in (PYTORCH, COMPILED):
        code = f"from speed import pytorch; pytorch({name!r}, {length}, {batch}, {variant!r})"
        command, folder = [sys.executable, "-c", code], pathlib.Path(__file__).parent
    else:
        command, folder = [sys.executable, "-m", "bertjax", "bench", "--json"], None
        command += ["--config", name, "--config.data.phases=()", "--repeats", "5"]
        command += [f"--config.data.max_seq_length={length}", f"--config.data.batch_size={batch}"]
        command += ["--config.data.microbatches=1", "--config.model.precision=bfloat16"]
        if variant != RECIPE:
            command += [NO_DROPOUT, f"--config.mesh.attention_kernel={variant}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=folder)
    if done.returncode:
        return {"failure": f"exit code {done.returncode}"}
    measured = json.loads(done.stdout)
    (phase,) = measured.pop("phases", [{}])
    if "out_of_memory" in phase:
        return {"failure": phase["out_of_memory"]}
    return {**measured, **phase}


def pytorch(name: str, length: int, batch: int, variant: str) -> None:
    """Measures the training step of transformers' model; prints JSON."""
    import torch
    import transformers

    layers, width = {"bert:base": (12, 768), "bert:large": (24, 1024)}[name]
    config = transformers.BertConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    model = transformers.BertForPreTraining(config).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    ids = torch.randint(config.vocab_size, (batch, length), device="cuda")
    labels = torch.where(torch.rand(ids.shape, device="cuda") < 0.15, ids, -100)
    pairs = torch.randint(2, (batch,), device="cuda")
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
    forward = torch.compile(model) if variant == COMPILED else model

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = forward(**inputs, next_sentence_label=pairs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def seconds_per_step(count: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / count

    compile_seconds = seconds_per_step(1)
    count = max(1, round(1 / seconds_per_step(2)))
    times = [seconds_per_step(count) for _ in range(5)]
    measured = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "steps_per_timing": count,
        "seconds_per_step": statistics.median(times),
        "seconds_per_step_min_max": [min(times), max(times)],
        "tokens_per_second": batch * length / statistics.median(times),
        "compile_seconds": compile_seconds,
        "peak_memory_bytes": torch.cuda.max_memory_allocated(),
    }
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
