"""`python -m bertjax VERB ...` is `bertjax VERB ...`."""

import sys

from bertjax.cli import main

if __name__ == "__main__":
    sys.exit(main())
