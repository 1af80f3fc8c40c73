"""``python -m remat``: the shell command."""

import sys

from remat.cli import main

if __name__ == "__main__":
    sys.exit(main())
