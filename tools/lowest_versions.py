"""Prints the lowest allowed version of each dependency, as constraints for `pip install -c`.

tools/lowest_versions.py > constraints.txt
python -m pip install -c constraints.txt '.[test]'
"""

import pathlib
import re
import tomllib

GROUPS = ("test",)
"""Extras whose packages are constrained, besides the dependencies."""

_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+)")


def main() -> None:
    """Prints one constraint per line."""
    path = pathlib.Path(__file__).parents[1] / "pyproject.toml"
    project = tomllib.loads(path.read_text())["project"]
    groups = [project["optional-dependencies"][name] for name in GROUPS]
    for requirement in [*project["dependencies"], *(line for group in groups for line in group)]:
        if match := _REQUIREMENT.match(requirement):
            print(f"{match[1]}=={match[2]}")


if __name__ == "__main__":
    main()
