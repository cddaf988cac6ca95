"""accelerate's own test of its operations, on several CPU processes.

    torchrun --nproc-per-node 2 examples/libraries/accelerate_test_ops.py
    phalanx run -n 2 examples/libraries/accelerate_test_ops.py

Run as it is, the script finds each process alone where there is no GPU, and its checks pass by.
Here the state exists before it asks, and there are as many processes as ranks.
"""

from accelerate import PartialState
from accelerate.test_utils.scripts import test_ops


def main() -> None:
    state = PartialState(cpu=True)
    print("process", state.process_index, "of", state.num_processes)
    test_ops.main()
    print("passed")


if __name__ == "__main__":
    main()
