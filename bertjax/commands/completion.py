"""Print the script that completes commands, options and configs in a shell."""

from bertjax.commands import _flags

GROUP = "Use"

EPILOG = """\
examples:
  bertjax completion bash >> ~/.bashrc
  bertjax completion zsh >> ~/.zshrc
  bertjax completion fish > ~/.config/fish/completions/bertjax.fish
"""


def main(argv: list[str]) -> None:
    """Prints the script of a shell."""
    arguments = parser().parse_args(argv)
    import argcomplete

    print(argcomplete.shellcode(["bertjax"], shell=arguments.shell))


def parser() -> _flags.Parser:
    """Returns the parser of the command line."""
    parser = _flags.Parser("bertjax completion", __doc__, EPILOG)
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], help="the shell")
    return parser
