"""`python -m benchmarks.orders`."""

import sys

from benchmarks.orders.run import main

sys.exit(main())
