"""The command line: verbs, help, one-line errors, interrupts."""

import argparse
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from bertjax import catalog, cli

FAKE = """
    import sys, types
    from bertjax import catalog, cli

    def main(argv):
{body}

    catalog.names = lambda folder: ["fake"]
    catalog.load = lambda folder, name: types.SimpleNamespace(main=main)
    cli._command = lambda module, words: []
    sys.exit(cli.main(["fake", *sys.argv[1:]]))
"""


@pytest.fixture
def fake(tmp_path, command_environment):
    """Run `bertjax fake` with the given body in a separate process."""

    def run(body: str, after: str = "", **options) -> subprocess.CompletedProcess:
        script = tmp_path / "fake.py"
        body = textwrap.indent(textwrap.dedent(body), " " * 8)
        script.write_text(textwrap.dedent(FAKE.format(body=body)))
        return subprocess.run(
            ["bash", "-c", f'set -o pipefail; "$0" "$1" {after}', sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=60,
            env=command_environment,
            **options,
        )

    return run


def test_help_lists_every_verb_with_its_first_line(run_bertjax):
    result = run_bertjax("--help")
    assert result.returncode == 0
    assert result.stderr == ""
    listed = result.stdout.splitlines()
    assert "Other:" not in listed, "a verb has no GROUP"
    for module in catalog.names("commands"):
        verb = module.replace("_", "-")
        place = next(n for n, line in enumerate(listed) if f"{line} ".startswith(f"  {verb} "))
        assert len(listed[place + 1].split()) > 3, (
            f"{module}.py requires a first docstring line that describes it"
        )


def test_the_help_of_every_verb_does_not_import_jax(run_bertjax, command_environment):
    verbs = catalog.names("commands")
    program = (
        "import sys; from bertjax import cli\n"
        "try: cli.main([sys.argv[1], '--help'])\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert 'jax' not in sys.modules, 'help imports jax'"
    )
    for verb in verbs:
        result = subprocess.run(
            [sys.executable, "-c", program, verb],
            capture_output=True,
            text=True,
            env=command_environment,
        )
        assert result.returncode == 0, f"{verb}: {result.stderr}"
        assert f"usage: bertjax {verb.replace('_', '-')}" in result.stdout


@pytest.mark.parametrize("module", catalog.names("commands"))
def test_help_has_short_lines(module):
    """A command of an example that runs on after a backslash stays on its lines."""
    parsers = [catalog.load("commands", module).parser()]
    for parser in parsers:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()
        assert max(map(len, parser.format_help().splitlines())) <= 100


def test_without_a_verb_and_with_version(capsys):
    assert cli.main([]) == 0
    assert capsys.readouterr().out.startswith("usage: bertjax VERB")
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.split()[0] == "bertjax"


def test_listing_verbs_imports_none_of_them(tmp_path, monkeypatch, capsys):
    (tmp_path / "commands").mkdir()
    (tmp_path / "commands" / "explode.py").write_text('"""Explodes.\n\nMore."""\nraise SystemError')
    monkeypatch.setattr("bertjax.__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setattr(catalog, "names", lambda folder: ["explode"])
    assert cli.main(["--help"]) == 0
    assert "Other:\n  explode\n      Explodes.\n" in capsys.readouterr().out


def test_an_unknown_verb_names_the_nearest(monkeypatch, capsys):
    monkeypatch.setattr(catalog, "names", lambda folder: ["finetune", "pretrain"])
    assert cli.main(["pretrian", "--config", "x"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "bertjax: error: unknown command 'pretrian': did you mean 'pretrain'?\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fill"], "unknown command 'fill': it is now bertjax fill-mask"),
        (["score"], "it is now bertjax evaluate predictions"),
        (["embed", "--out=x"], "bertjax embed: error: --out is now --output"),
        (["evaluate", "choices", "--shots", "2"], "--shots is now --num_fewshot"),
        (["sweep", "--status", "w"], "--status is now bertjax sweep status --workdir WORKDIR"),
        (["launch", "--processes", "2"], "--processes is now an option of bertjax launch local"),
        (["pretrain", "--config", "t5:base", "--workdir", "w"], "t5 is now span_corruption"),
        (
            [
                *("pretrain", "--config", "distilbert", "--workdir", "w"),
                "--config.objectives.soft_targets.begin_from_teacher=false",
            ],
            "config.objectives.soft_targets.begin_from_teacher is now init_from_teacher",
        ),
        (["evaluate"], "required: COMMAND (see bertjax evaluate --help)"),
        (["pretrain", "--config", "bert:tiny"], "arguments are required: --workdir"),
        (["pretrain", "--config", "bert:tiny", "--init_optimizer"], "got no --init, expected one"),
        (["pretrain", "--config", "bert:tiny", "--init", "absent"], "absent is not a run"),
    ],
)
def test_wrong_words_and_old_spellings_are_refused_in_one_line(capsys, words, message):
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_hyphens_stand_for_underscores(capsys):
    words = ["embed", "--model", "absent", "--input", "absent", "--output", "x.npz"]
    assert cli.main([*words, "--max-length=-1"]) == 2
    assert "--max_length: got -1" in capsys.readouterr().err
    assert cli._with_underscores(["--dry-run", "a-b", "--", "--dry-run"]) == [
        *("--dry_run", "a-b", "--", "--dry-run"),
    ]


def test_defaults_are_in_the_help(capsys):
    with pytest.raises(SystemExit):
        cli.main(["fill-mask", "--help"])
    out = capsys.readouterr().out
    assert "texts per batch (default: 32)" in out
    assert "(default: False)" not in out


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("bertjax fill", ["fill-mask "]),
        ("bertjax evaluate ch", ["choices "]),
        ("bertjax embed --pooling ", ["none", "mean", "weighted", "cls"]),
        ("bertjax pretrain --config quick", ["quickstart "]),
    ],
)
def test_a_shell_completes_verbs_options_and_configs(tmp_path, command_environment, line, expected):
    """As the script of `bertjax completion bash` calls it."""
    found = tmp_path / "found"
    subprocess.run(
        [sys.executable, "-c", "import sys; from bertjax import cli; sys.exit(cli.main())"],
        env=command_environment
        | {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
        | {"_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_STDOUT_FILENAME": str(found)},
        check=True,
        timeout=60,
    )
    assert found.read_text().split("\n") == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script(capsys, shell):
    assert cli.main(["completion", shell]) == 0
    assert "_ARGCOMPLETE" in capsys.readouterr().out


def test_a_user_error_is_one_line_and_exit_2(fake):
    result = fake("from bertjax.errors import UserError\nraise UserError('3 came, 4 was expected')")
    assert result.returncode == 2
    assert result.stderr == "bertjax fake: error: 3 came, 4 was expected\n"
    assert result.stdout == ""


def test_a_temporary_error_has_the_status_of_a_temporary_failure(fake):
    """Launchers do not restart a job that ended with status 2."""
    result = fake("from bertjax.errors import TemporaryError\nraise TemporaryError('late')")
    assert (result.returncode, result.stderr) == (75, "bertjax fake: error: late\n")


def test_a_bug_keeps_its_traceback(fake):
    result = fake("raise ValueError('a defect')")
    assert result.returncode == 1
    assert "Traceback" in result.stderr


def test_a_full_disk_is_one_line(fake):
    result = fake("open('/dev/full', 'w').write('x' * 100_000)")
    assert result.returncode == 2
    assert result.stderr == "bertjax fake: error: No space left on device: unknown file\n"


def test_control_c_has_no_traceback(fake):
    result = fake("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)")
    assert result.returncode == 128 + signal.SIGINT
    assert result.stderr == "bertjax fake: interrupted\n"


IN_COMPILED_CODE = """
    import hashlib, os, select, signal, subprocess, sys, threading
    def press():
        os.kill(os.getpid(), signal.SIGINT)
        if select.select([reader], [], [], 60)[0]:  # it prints that it waits
            os.write(terminal, os.read(reader, 999))
            os.kill(os.getpid(), signal.SIGINT)
    reader, writer = os.pipe()
    terminal = os.dup(2)
    os.dup2(writer, 2)
    threading.Timer(0.2, press).start()
    hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 10**9)
"""


def test_a_second_control_c_ends_compiled_code(fake):
    result = fake(IN_COMPILED_CODE)
    assert result.returncode == 128 + signal.SIGINT
    assert result.stderr == (
        "bertjax fake: stopping once compilation or loading has finished; press Ctrl-C again to "
        "stop now\n"
    )


def test_an_error_caused_by_an_interrupt_has_no_traceback(fake):
    body = """
        import os, signal, time
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(9)
        except KeyboardInterrupt:
            raise ImportError("while initializing the extension")
    """
    result = fake(body)
    assert result.returncode == 128 + signal.SIGINT
    assert result.stderr == "bertjax fake: interrupted\n"


def test_a_closed_pipe_is_quiet(fake):
    result = fake("for i in range(1_000_000): print(i)", after="| head -n 1")
    assert result.stdout == "0\n"
    assert result.stderr == ""
    assert result.returncode == 128 + signal.SIGPIPE


def test_another_broken_pipe_is_a_bug(fake):
    body = """
        import os
        reader, writer = os.pipe()
        os.close(reader)
        os.write(writer, b"x")
    """
    result = fake(body)
    assert result.returncode == 1
    assert "BrokenPipeError" in result.stderr


def test_the_exit_status_of_a_command_is_kept(fake):
    assert fake("sys.exit(143)").returncode == 143


def test_nothing_heavy_is_imported_before_the_verb_is_parsed(command_environment):
    program = (
        "import sys; from bertjax import cli; cli.main(['--help']); cli.main(['x'])\n"
        "heavy = {'jax', 'numpy', 'ml_collections', 'rich', 'argparse'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    environment = {k: v for k, v in command_environment.items() if k in ("PATH", "PYTHONPATH")}
    subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, env=environment
    )


def test_the_module_is_the_command(command_environment):
    command = [sys.executable, "-m", "bertjax", "--version"]
    version = subprocess.run(command, capture_output=True, text=True, env=command_environment)
    script = os.path.join(os.path.dirname(sys.executable), "bertjax")
    if os.path.exists(script):
        from_script = subprocess.run([script, "--version"], capture_output=True, text=True)
        assert from_script.stdout == version.stdout
    assert version.stdout.startswith("bertjax 0.")
