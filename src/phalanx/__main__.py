"""`python -m phalanx`: the command line."""

import sys

from phalanx.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
