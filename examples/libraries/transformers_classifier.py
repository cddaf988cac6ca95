"""A classifier with transformers and datasets: mapped data, workers, bfloat16, the best model.

    torchrun --nproc-per-node 2 examples/libraries/transformers_classifier.py
    phalanx run -n 2 examples/libraries/transformers_classifier.py

The main process prepares the data first; each rank loads it with a worker process, and the best
of the checkpoints is what predicts at the end.
"""

from datasets import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)


def tokens_of(row: dict) -> dict:
    number = row["number"]
    return {"input_ids": [number % 16, number % 5, 3], "labels": number % 2}


def make_model() -> BertForSequenceClassification:
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=16,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
        )
    )


def main() -> None:
    arguments = TrainingArguments(
        output_dir="classifier",
        use_cpu=True,
        bf16=True,
        max_steps=6,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        dataloader_num_workers=1,
        gradient_checkpointing=True,
        logging_steps=3,
        eval_strategy="steps",
        eval_steps=3,
        save_steps=3,
        save_total_limit=1,
        load_best_model_at_end=True,
        report_to="none",
        disable_tqdm=True,
    )
    set_seed(0)
    data = Dataset.from_dict({"number": list(range(64))})
    with arguments.main_process_first(desc="preparing the data"):
        data = data.map(tokens_of, remove_columns=["number"])
    trainer = Trainer(
        model=make_model(),
        args=arguments,
        train_dataset=data,
        eval_dataset=data.select(range(20)),
    )
    loss = trainer.train().training_loss
    print(f"result loss {loss:.5f}, best {trainer.state.best_metric:.5f}")
    print("result kept", trainer.state.best_model_checkpoint)
    prediction = trainer.predict(data.select(range(5)))
    print(f"result predicted {prediction.predictions.round(3).tolist()}")
    print(f"result loss of that {prediction.metrics['test_loss']:.5f}")


if __name__ == "__main__":
    main()
