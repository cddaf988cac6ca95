"""What accelerate offers between processes, without a training loop.

    torchrun --nproc-per-node 4 examples/libraries/accelerate_operations.py
    phalanx run -n 4 examples/libraries/accelerate_operations.py

Splitting work, gathering objects and uneven tensors, batches dispatched by the main process,
local SGD, and a flag that one process raises for all.
"""

import torch
from accelerate import Accelerator, DataLoaderConfiguration, PartialState
from accelerate.local_sgd import LocalSGD
from accelerate.logging import get_logger
from accelerate.utils import broadcast_object_list, gather_object, set_seed
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

logger = get_logger(__name__, log_level="INFO")


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(range(21))


def show_state(state: PartialState) -> None:
    with state.split_between_processes(list("abcdefghij")) as letters:
        print("letters", "".join(letters))
    with state.split_between_processes([1, 2, 3], apply_padding=True) as numbers:
        print("padded", numbers)
    with state.main_process_first():
        print("main" if state.is_main_process else "other", state.local_process_index)
    state.wait_for_everyone()


def show_operations(accelerator: Accelerator) -> None:
    rank = accelerator.process_index
    print("objects", gather_object([{"rank": rank}]))
    print("from the main process", broadcast_object_list([f"said by {rank}"]))
    uneven = torch.full((rank + 1,), float(rank))
    padded = accelerator.pad_across_processes(uneven, pad_index=-1)
    print("gathered", accelerator.gather(padded).tolist())
    print("reduced", accelerator.reduce({"sum": torch.tensor([rank + 1.0])}, "sum"))
    if rank == accelerator.num_processes - 1:
        accelerator.set_trigger()
    print("triggered", accelerator.check_trigger(), accelerator.check_trigger())


def show_batches(accelerator: Accelerator) -> None:
    loader = accelerator.prepare(DataLoader(Numbers(), batch_size=2))
    seen = [accelerator.gather_for_metrics(batch).tolist() for batch in loader]
    print("dispatched", seen)
    accelerator.dataloader_config.dispatch_batches = None
    skipped = accelerator.skip_first_batches(loader, 1)
    print("after the first", [batch.tolist() for batch in skipped])


def train_locally(accelerator: Accelerator) -> None:
    """Every process trains alone and they average their models every second step."""
    set_seed(3)
    x = torch.randn(32, 3)
    loader = DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=2)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=2) as local:
        for a, b in loader:
            loss = nn.functional.mse_loss(model(a), b)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            local.step()
    weights = accelerator.unwrap_model(model).weight.detach().flatten()
    print("weights", [round(value, 5) for value in weights.tolist()])


def main() -> None:
    accelerator = Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=True)
    )
    logger.info("told once, by the main process")
    show_state(PartialState())
    show_operations(accelerator)
    show_batches(accelerator)
    train_locally(accelerator)
    accelerator.print("done")
    accelerator.end_training()


if __name__ == "__main__":
    main()
