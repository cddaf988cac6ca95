"""`python -m benchmarks.bugs`."""

import sys

from benchmarks.bugs.run import main

sys.exit(main())
