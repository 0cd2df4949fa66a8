"""The command line: `bertjax VERB ...` runs `main` of `bertjax/commands/VERB.py`.

Nothing heavy is imported before the verb is known, and listing the verbs imports none of them.
"""

import ast
import contextlib
import errno
import os
import pathlib
import select
import sys

import bertjax
from bertjax import catalog
from bertjax.errors import Interrupted, UserError, nearest
from bertjax.runtime import compilation_cache, signals
from bertjax.runtime import host as runtime_host

_TRAINING = ("pretrain", "finetune", "bench")
"""Verbs whose every step takes and frees as much again, in threads of XLA. With one arena for all,
the threads of `bertjax tokenizer` wait for each other."""

_SUCCESS, _MISTAKE, _READER_GONE = 0, 2, 128 + 13

_MACHINE_IS_FULL_OR_SHUT = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS}
_NO_SUCH_NAME = {errno.ENAMETOOLONG, errno.ELOOP}
"""Of a path: only the user names paths that are too long, or links that lead to themselves."""


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns the exit status: 0, 2 for a user error, or 128 + signal.

    Args:
      argv: the words after `bertjax`; those of this process by default.
    """
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        return _quietly(lambda: print(overview()), "bertjax")
    if arguments[0] in ("-V", "--version"):
        return _quietly(lambda: print(f"bertjax {bertjax.__version__}"), "bertjax")
    verb, *rest = arguments
    if verb not in catalog.names("commands"):
        hint = nearest(verb, catalog.names("commands"))
        print(f"bertjax: error: no command {verb!r}: {hint}", file=sys.stderr)
        return _MISTAKE
    compilation_cache.enable()
    runtime_host.skip_absent_tpus()
    runtime_host.enlarge_tpu_compiler_stack()
    if verb in _TRAINING and not runtime_host.list_gpus() and not runtime_host.list_tpu_chips():
        runtime_host.keep_freed_memory()
    status = _quietly(lambda: catalog.load("commands", verb).main(rest), f"bertjax {verb}")
    if status == signals.INTERRUPTED and argv is None:
        # XLA's threads still compute: the interpreter would wait for them, or crash beside them.
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(status)
    return status


def overview() -> str:
    """The text of `bertjax --help`: every verb with the first line of its file."""
    verbs = catalog.names("commands")
    width = max(map(len, verbs), default=0)
    lines = [f"  {verb:<{width}}  {_first_line(verb)}" for verb in verbs]
    return "\n".join(
        [
            "usage: bertjax VERB ...",
            "",
            (bertjax.__doc__ or "").strip(),
            "",
            *lines,
            "",
            "bertjax VERB --help explains one; every VERB is the file bertjax/commands/VERB.py.",
            "Files and folders may be gs://... or s3://..., all but a --config.",
        ]
    )


def _first_line(verb: str) -> str:
    source = pathlib.Path(bertjax.__file__).with_name("commands") / f"{verb}.py"
    docstring = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0]


def _quietly(run, name: str) -> int:
    """Runs a command and turns what the user can fix, or expected, into one line and a status."""
    with signals.ControlC(name) as control_c:
        try:
            status = _status(run, name)
            if not control_c.pressed:
                return status
        except (KeyboardInterrupt, Exception) as error:
            # A library may turn the interrupt into an error of its own.
            if not (control_c.pressed or isinstance(error, KeyboardInterrupt)):
                raise
        print(f"{name}: interrupted", file=sys.stderr)
        return signals.INTERRUPTED


def _status(run, name: str) -> int:
    try:
        run()
        sys.stdout.flush()
    except UserError as error:
        return _complain(name, str(error))
    except Interrupted as stop:
        print(f"{name}: {stop}", file=sys.stderr)
        return stop.exit_code
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _reader_is_gone():
            # The interpreter flushes once more on its way out, which must not fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return _READER_GONE
        if error.errno not in _MACHINE_IS_FULL_OR_SHUT | _NO_SUCH_NAME:
            raise
        return _complain(name, f"{error.strerror}: {error.filename or 'no file named'}")
    return _SUCCESS


def _complain(name: str, message: str) -> int:
    print(f"{name}: error: {message}", file=sys.stderr)
    return _MISTAKE


def _reader_is_gone() -> bool:
    """Whether it is standard output that broke, rather than a pipe to some worker."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
