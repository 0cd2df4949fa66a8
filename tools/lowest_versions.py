"""Prints the lowest allowed version of each dependency, as constraints for `pip install -c`.

python tools/lowest_versions.py > constraints.txt
python -m pip install -c constraints.txt .
"""

import pathlib
import re
import tomllib

_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+)")


def main() -> None:
    """Prints one constraint per line."""
    path = pathlib.Path(__file__).parents[1] / "pyproject.toml"
    for requirement in tomllib.loads(path.read_text())["project"]["dependencies"]:
        if match := _REQUIREMENT.match(requirement):
            print(f"{match[1]}=={match[2]}")


if __name__ == "__main__":
    main()
