"""What a plan of faults does to ranks that are threads: when, where, and how the rank takes it.
What the others see of it is in `backend/losses/`."""
