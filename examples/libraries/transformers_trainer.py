"""The Trainer of transformers on a tiny language model with random weights.

    torchrun --nproc-per-node 2 examples/libraries/transformers_trainer.py
    phalanx run -n 2 examples/libraries/transformers_trainer.py

Trains, evaluates with a metric over all ranks, saves checkpoints, and goes on from the first of
them in a second Trainer.
"""

import sys

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

WORDS = 32


class Sequences(Dataset):
    """Each token is the one before it plus the sequence's own step: something to learn."""

    def __init__(self, samples: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        start = torch.randint(WORDS, (samples, 1), generator=generator)
        step = torch.randint(1, 4, (samples, 1), generator=generator)
        self.tokens = (start + step * torch.arange(16)) % WORDS

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def make_model(kind: str) -> torch.nn.Module:
    set_seed(0)
    if kind == "gpt2":
        return GPT2LMHeadModel(
            GPT2Config(vocab_size=WORDS, n_positions=16, n_embd=32, n_layer=2, n_head=2)
        )
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=16,
        )
    )


def accuracy(prediction) -> dict[str, float]:
    guess = np.argmax(prediction.predictions, axis=-1)[:, :-1]
    right = guess == prediction.label_ids[:, 1:]
    return {"accuracy": float(right.mean()), "samples": len(right)}


class Tell(TrainerCallback):
    """Prints what the Trainer logs, without the times."""

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        shown = {
            name: round(float(value), 5)
            for name, value in (logs or {}).items()
            if not name.endswith(("runtime", "per_second", "flos"))
        }
        print(f"result rank {args.process_index} step {state.global_step} {shown}")


def make_trainer(kind: str) -> Trainer:
    arguments = TrainingArguments(
        output_dir="out",
        use_cpu=True,
        num_train_epochs=2,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=5e-3,
        logging_steps=2,
        eval_strategy="epoch",
        save_strategy="epoch",
        dataloader_drop_last=True,
        seed=1,
        report_to="none",
        disable_tqdm=True,
    )
    return Trainer(
        model=make_model(kind),
        args=arguments,
        train_dataset=Sequences(64, seed=2),
        eval_dataset=Sequences(30, seed=3),
        compute_metrics=accuracy,
        callbacks=[Tell()],
    )


def main() -> None:
    kind = sys.argv[1] if len(sys.argv) > 1 else "gpt2"
    trainer = make_trainer(kind)
    first = trainer.train().training_loss
    resumed = make_trainer(kind)
    half = 64 // (4 * 2 * trainer.args.world_size)
    second = resumed.train(resume_from_checkpoint=f"out/checkpoint-{half}").training_loss
    print(f"result loss {first:.5f}, resumed {second:.5f}")
    prompt = torch.tensor([[1, 3, 5, 7]])
    tokens = resumed.model.generate(prompt, max_new_tokens=6, do_sample=False, pad_token_id=0)
    print("result generated", tokens[0].tolist())


if __name__ == "__main__":
    main()
