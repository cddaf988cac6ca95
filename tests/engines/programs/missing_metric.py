"""Rank 2 has no metric of one name in the second step, so all later ones meet others."""

import torch
import torch.distributed as dist


class Logger:
    def __init__(self) -> None:
        self.means: dict[str, torch.Tensor] = {}

    def log(self, name: str, value: float) -> None:
        self.means[name] = self.mean_of(value)

    def mean_of(self, value: float) -> torch.Tensor:
        total = torch.tensor(value)
        dist.all_reduce(total)
        return total / dist.get_world_size()

    def log_all(self, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            self.log(name, value)


def main() -> None:
    dist.init_process_group("gloo")
    logger = Logger()
    for step in range(3):
        metrics = {"loss": 1.0}
        if not (dist.get_rank() == 2 and step == 1):
            metrics["neg_loss"] = 2.0
        metrics["recall"] = 0.5
        logger.log_all(metrics)


main()
