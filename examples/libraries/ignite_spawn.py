"""pytorch-ignite starts the ranks itself: `idist.Parallel` with `nproc_per_node`.

    python examples/libraries/ignite_spawn.py
    phalanx run examples/libraries/ignite_spawn.py

The processes that torch.multiprocessing would start become ranks.
"""

import sys

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from ignite.metrics import Accuracy, Average
from ignite.utils import manual_seed
from torch import nn


def train(local_rank: int, config: dict[str, float], *, label: str) -> None:
    rank, world = idist.get_rank(), idist.get_world_size()
    manual_seed(5)
    model = idist.auto_model(nn.Linear(3, 2))
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=config["lr"]))

    def step(engine: Engine, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        target = (batch.sum(1) > 0).long()
        logits = model(batch)
        loss = nn.functional.cross_entropy(logits, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        engine.state.loss = loss.item()
        return logits.detach(), target

    trainer = Engine(step)
    Accuracy().attach(trainer, "accuracy")
    Average(lambda output: output[0].norm().item()).attach(trainer, "norm")

    @trainer.on(Events.EPOCH_COMPLETED)
    @idist.one_rank_only(rank=world - 1)
    def tell(engine: Engine) -> None:
        metrics = {name: round(value, 4) for name, value in engine.state.metrics.items()}
        print(f"{label} epoch {engine.state.epoch}: {metrics}")

    generator = torch.Generator().manual_seed(rank)
    trainer.run([torch.randn(8, 3, generator=generator) for _ in range(4)], max_epochs=2)
    print(f"rank {rank} of {world}, {local_rank} here, loss {trainer.state.loss:.4f}")
    print(f"rank {rank} gathers {idist.all_gather(rank * 10)}")


def main() -> None:
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    with idist.Parallel(backend="gloo", nproc_per_node=ranks, master_port=29555) as parallel:
        parallel.run(train, {"lr": 0.1}, label="first")
        parallel.run(train, {"lr": 0.2}, label="second")
    print("afterwards", idist.model_name(), idist.get_world_size())


if __name__ == "__main__":
    main()
