"""Entry point of `python -m bertjax VERB ...`, the same as `bertjax VERB ...`."""

import sys

from bertjax.cli import main

if __name__ == "__main__":
    sys.exit(main())
