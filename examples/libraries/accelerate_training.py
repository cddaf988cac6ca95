"""A training loop with accelerate: prepared model, optimizer, data and scheduler.

    torchrun --nproc-per-node 2 examples/libraries/accelerate_training.py
    phalanx run -n 2 examples/libraries/accelerate_training.py

Gradients are accumulated over two batches, the state is saved and loaded again, and the metric
counts every sample once although the last batch is filled up.
"""

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_data(samples: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, 4, generator=generator)
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


def train(accelerator: Accelerator, model, optimizer, scheduler, loader) -> float:
    total = 0.0
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        total += accelerator.reduce(loss.detach(), reduction="mean").item()
    return total / len(loader)


def evaluate(accelerator: Accelerator, model, loader) -> tuple[int, int]:
    model.eval()
    right = samples = 0
    for x, y in loader:
        with torch.no_grad():
            guess = model(x).argmax(dim=-1)
        guess, y = accelerator.gather_for_metrics((guess, y))
        right += int((guess == y).sum())
        samples += len(y)
    model.train()
    return right, samples


def main() -> None:
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=2,
        project_config=ProjectConfiguration("run", automatic_checkpoint_naming=True),
    )
    set_seed(7, device_specific=True)
    print(f"process {accelerator.process_index} of {accelerator.num_processes}")
    print(f"own draw {torch.rand(()).item():.6f}")
    set_seed(7)
    net = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    loader = DataLoader(make_data(96), batch_size=8, shuffle=True)
    held_out = DataLoader(make_data(37), batch_size=8)
    model, optimizer, loader, held_out, scheduler = accelerator.prepare(
        net, optimizer, loader, held_out, scheduler
    )
    for epoch in range(3):
        loss = train(accelerator, model, optimizer, scheduler, loader)
        right, samples = evaluate(accelerator, model, held_out)
        print(f"epoch {epoch} loss {loss:.6f} right {right} of {samples}")
        if epoch == 1:
            accelerator.save_state()
            accelerator.wait_for_everyone()
    after = train(accelerator, model, optimizer, scheduler, loader)
    accelerator.load_state("run/checkpoints/checkpoint_0")
    again = train(accelerator, model, optimizer, scheduler, loader)
    print(f"fourth epoch {after:.6f}, third again {again:.6f}")
    names = accelerator.gather_for_metrics([f"process {accelerator.process_index}"])
    accelerator.print(*names)
    accelerator.end_training()


if __name__ == "__main__":
    main()
