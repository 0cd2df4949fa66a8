"""The command line: `bertjax VERB ...` runs `main` of `bertjax/commands/VERB.py`.

Heavy imports happen in the verb only; `bertjax --help` reads the verbs' files without importing.
"""

import ast
import contextlib
import errno
import os
import pathlib
import select
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import bertjax
from bertjax import catalog
from bertjax.errors import Interrupted, UserError, nearest
from bertjax.runtime import compilation_cache, signals
from bertjax.runtime import host as runtime_host

_COMPUTING = ("bench", "embed", "evaluate", "finetune", "generate", "predict", "pretrain")
"""Verbs for which glibc keeps freed memory (`runtime/host.py`): every batch allocates and frees the
same arrays. Not for other verbs: threads that train a tokenizer would contend for the one arena."""

_SUCCESS, _USER_ERROR, _BROKEN_PIPE = 0, UserError.exit_status, 128 + 13

_STORAGE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS}
"""The disk is full, or access is denied: the user can fix it."""
_PATH_ERRORS = {errno.ENAMETOOLONG, errno.ELOOP}
"""A path that is too long, or a cycle of links: always from the user's arguments."""


_GROUPS = ("Data", "Train", "Evaluate", "Use", "Exchange", "Scale", "Other")
"""Order of the groups in `bertjax --help`; a verb without GROUP is in the last one."""

_RENAMED = {
    "analyze": "python experiments/layer_similarity.py",
    "choose": "bertjax evaluate choices",
    "extract": "bertjax embed",
    "features": "bertjax suite features",
    "fill": "bertjax fill-mask",
    "glue": "bertjax suite glue",
    "perplexity": "bertjax evaluate perplexity",
    "score": "bertjax evaluate predictions",
    "tokenize": "bertjax tokenizer encode, or decode",
    "translate": "bertjax generate",
}
"""Removed verbs -> their replacements."""


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns the exit status: 0, 128 + signal, or that of a `UserError`.

    Args:
      argv: The words after `bertjax`; None for those of this process.
    """
    if "_ARGCOMPLETE" in os.environ:
        return _complete()
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        return _run_command(lambda: print(overview()), "bertjax")
    if arguments[0] in ("-V", "--version"):
        return _run_command(lambda: print(f"bertjax {bertjax.__version__}"), "bertjax")
    verb, *rest = arguments
    module = verb.replace("-", "_")
    if module not in catalog.names("commands"):
        verbs = [name.replace("_", "-") for name in catalog.names("commands")]
        hint = f"it is now {_RENAMED[verb]}" if verb in _RENAMED else nearest(verb, verbs)
        print(f"bertjax: error: unknown command {verb!r}: {hint}", file=sys.stderr)
        return _USER_ERROR
    # An environment variable, set before jax is imported and inherited by child processes.
    compilation_cache.enable()
    runtime_host.skip_absent_tpus()
    runtime_host.enlarge_tpu_compiler_stack()
    if verb in _COMPUTING:
        runtime_host.tune_for_cpu()
    words = _with_underscores(rest)
    name = " ".join(["bertjax", module.replace("_", "-"), *_command(module, words)])
    status = _run_command(lambda: catalog.load("commands", module).main(words), name)
    if status == signals.INTERRUPTED and argv is None:
        # XLA's threads still compute: a normal exit would wait for them, or crash.
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(status)
    return status


def _with_underscores(words: list[str]) -> list[str]:
    """Replaces hyphens in the names of options, up to `--`, after which others are passed on."""
    end = words.index("--") if "--" in words else len(words)
    found = []
    for word in words[:end]:
        option, equals, value = word.partition("=")
        if option.startswith("--") and not option.startswith("--config."):
            option = "--" + option[2:].replace("-", "_")
        found.append(f"{option}{equals}{value}")
    return [*found, *words[end:]]


def overview() -> str:
    """Returns the text of `bertjax --help`: every verb with the first line of its file."""
    groups: dict[str, list[str]] = {name: [] for name in _GROUPS}
    for module in catalog.names("commands"):
        constants = _read_constants(module)
        verb = " ".join([module.replace("_", "-"), "|".join(constants.get("COMMANDS", ()))]).strip()
        groups[constants.get("GROUP", _GROUPS[-1])] += [
            f"  {verb}",
            _first_line(constants["docstring"]),
        ]
    lines = []
    for name, members in groups.items():
        lines += [f"{name}:", *members, ""] if members else []
    return "\n".join(
        [
            "usage: bertjax VERB ...",
            "",
            (bertjax.__doc__ or "").strip(),
            "",
            *lines,
            "Run bertjax VERB --help for its options and examples.",
            "Files and folders may be in buckets: gs://... or s3://..., except --config.",
        ]
    )


def _first_line(docstring: str) -> str:
    line = docstring.partition("\n")[0]
    return textwrap.fill(line, 80, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _read_constants(module: str) -> dict[str, Any]:
    """Reads the docstring and the constants of a verb's file without importing it."""
    path = pathlib.Path(bertjax.__file__).parent / "commands" / f"{module}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: dict[str, Any] = {"docstring": ast.get_docstring(tree) or ""}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            with contextlib.suppress(ValueError):
                found[node.targets[0].id] = ast.literal_eval(node.value)
    return found


def _command(module: str, words: list[str]) -> list[str]:
    """Returns the command of a verb with several, for messages."""
    return words[:1] if words and words[0] in _read_constants(module).get("COMMANDS", ()) else []


def _complete() -> int:
    """Prints the completions of the words in the environment, which a shell's script sets."""
    import argparse

    import argcomplete

    root = argparse.ArgumentParser("bertjax")
    verbs = root.add_subparsers()
    typed = os.environ.get("COMP_LINE", "").split()[1:2]
    for module in catalog.names("commands"):
        verb = module.replace("_", "-")
        verbs.add_parser(verb, help=_read_constants(module)["docstring"].partition("\n")[0])
        if [verb] == typed:
            verbs.choices[verb] = catalog.load("commands", module).parser()
    argcomplete.autocomplete(root)
    return _SUCCESS


def _run_command(run: Callable[[], object], name: str) -> int:
    """Runs a command and converts interrupts and user errors to one line and an exit status."""
    with signals.ControlC(name) as control_c:
        try:
            status = _status(run, name)
            if not control_c.pressed:
                return status
        except (KeyboardInterrupt, Exception) as error:
            # A library may convert the interrupt to another exception.
            if not (control_c.pressed or isinstance(error, KeyboardInterrupt)):
                raise
        print(f"{name}: interrupted", file=sys.stderr)
        return signals.INTERRUPTED


def _status(run: Callable[[], object], name: str) -> int:
    try:
        run()
        sys.stdout.flush()
    except UserError as error:
        return _print_error(name, str(error), error.exit_status)
    except Interrupted as stop:
        print(f"{name}: {stop}", file=sys.stderr)
        return stop.exit_code
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _stdout_is_closed():
            # The interpreter flushes again at exit, which must not fail a second time.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return _BROKEN_PIPE
        if error.errno not in _STORAGE_ERRORS | _PATH_ERRORS:
            raise
        return _print_error(name, f"{error.strerror}: {error.filename or 'unknown file'}")
    return _SUCCESS


def _print_error(name: str, message: str, status: int = _USER_ERROR) -> int:
    print(f"{name}: error: {message}", file=sys.stderr)
    return status


def _stdout_is_closed() -> bool:
    """Returns whether standard output is closed, rather than the pipe of a worker."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
