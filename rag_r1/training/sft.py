"""Supervised cold start: the policy imitates demonstrations, with loss on what the teacher wrote and nothing else.

    python -m rag_r1.training.sft --data outputs/toy --output outputs/sft

Model. A row is a chat prompt and the segments that follow it, each written by the policy or not. The ids of a row are
made exactly as the rollout makes them: the prompt through the chat template with the generation prompt, then each
segment encoded by itself and appended. So a row's ids are a prefix of what a rollout with the same turns holds, and
the loss mask is known per segment; it is never looked for in text. Rows carry a `stage`; stages are trained in order
(a curriculum: a tiny policy that starts with whole trajectories does not learn to copy in time), the rows of a stage
are shuffled, and rows of like length share a batch whose padded size is at most `batch_tokens`.

Why transformers' Trainer and not verl's SFT trainer: the order of rows matters here (the curriculum), and verl's loads chat
messages through a data set and a sampler of its own; the Trainer takes ready-made batches in the order given.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler, SequentialSampler
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from rag_r1.rollout import encode_prompt

IGNORED = -100


@dataclass(frozen=True, kw_only=True)
class SftConfig:
    """Settings of a run. The defaults are those of the tiny policy."""

    data: str
    """A folder with `sft.jsonl` (rows: messages, segments, stage) and `policy` (model and tokenizer to start from)."""
    output: str
    """Directory for the checkpoint and metrics.jsonl."""
    batch_tokens: int = 1200
    """Most tokens of a batch, padding included. A row longer than that is a batch of its own."""
    learning_rate: float = 3e-3
    """Peak; warm-up over the first 2 % of the steps, then cosine to zero."""
    adam_beta2: float = 0.98
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    epochs: int = 1
    """Passes over each stage before the next begins."""
    seed: int = 0
    log_every: int = 50
    """Steps between two lines of metrics.jsonl."""


@dataclass(frozen=True, slots=True)
class Example:
    """One row as ids; `labels[i]` is `ids[i]` where the policy wrote it and -100 elsewhere."""

    ids: list[int]
    labels: list[int]
    stage: int


def encode_row(row: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> Example:
    """A row's ids and labels, of equal length. The last policy segment ends at its tag: no eos is appended."""
    ids = encode_prompt(tokenizer, row["messages"])
    labels = [IGNORED] * len(ids)
    for segment in row["segments"]:
        new = tokenizer.encode(segment["text"], add_special_tokens=False)
        ids += new
        labels += new if segment["is_model"] else [IGNORED] * len(new)
    return Example(ids, labels, int(row.get("stage", 0)))


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """Rows of an SFT file. Raises ValueError, with file and line, for one that is not a row."""
    rows = []
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            row = json.loads(line)
            missing = {"messages", "segments"} - row.keys()
            if missing or not any(segment["is_model"] for segment in row["segments"]):
                problem = f"lacks {sorted(missing)}" if missing else "has no segment written by the model"
                raise ValueError(f"{path}, line {number}: the row {problem}; see the docstring of rag_r1.training.sft")
            rows.append(row)
    if not rows:
        raise ValueError(f"{path} holds no rows; make them with scripts/data_process/make_toy_data.py")
    return rows


def make_batches(examples: Sequence[Example], batch_tokens: int, epochs: int, seed: int) -> list[list[Example]]:
    """Batches in training order: stage after stage, shuffled within, rows of like length together."""
    rng = random.Random(seed)
    batches: list[list[Example]] = []
    for stage in sorted({example.stage for example in examples}):
        rows = [example for example in examples if example.stage == stage]
        for _ in range(epochs):
            rng.shuffle(rows)
            # Sorting is stable, so rows of equal length stay shuffled.
            packed = _pack(sorted(rows, key=lambda row: len(row.ids)), batch_tokens)
            rng.shuffle(packed)
            batches += packed
    return batches


def _pack(rows: Sequence[Example], batch_tokens: int) -> list[list[Example]]:
    batches: list[list[Example]] = []
    for row in rows:
        # Rows come shortest first, so the new row sets the padded width.
        if not batches or (len(batches[-1]) + 1) * len(row.ids) > batch_tokens:
            batches.append([])
        batches[-1].append(row)
    return batches


def collate(rows: Sequence[Example], pad_id: int) -> dict[str, torch.Tensor]:
    """`input_ids` and `labels`, both (B, T) int64, padded on the right.

    No attention mask: with causal attention no position sees the padding to its right, and padding has no loss.
    """
    width = max(len(row.ids) for row in rows)
    ids = torch.full((len(rows), width), pad_id)  # (B, T)
    labels = torch.full((len(rows), width), IGNORED)  # (B, T)
    for i, row in enumerate(rows):
        ids[i, : len(row.ids)] = torch.tensor(row.ids)
        labels[i, : len(row.labels)] = torch.tensor(row.labels)
    return {"input_ids": ids, "labels": labels}


class _Batches(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, batches: Sequence[Sequence[Example]], pad_id: int) -> None:
        self.batches, self.pad_id = batches, pad_id

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return collate(self.batches[index], self.pad_id)


class _InOrder(Trainer):  # type: ignore[misc]
    """Takes ready-made batches in the order given: the curriculum is in that order."""

    def _get_train_sampler(self, train_dataset: Dataset[Any] | None = None) -> Sampler[int]:
        return SequentialSampler(train_dataset if train_dataset is not None else self.train_dataset)


class _Metrics(TrainerCallback):  # type: ignore[misc]
    def __init__(self, path: Path) -> None:
        self.path, self.started = path, time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        record = {"step": state.global_step, "seconds": round(time.perf_counter() - self.started, 1), **(logs or {})}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def train(config: SftConfig) -> Path:
    """Run SFT in fp32 and return the directory of the checkpoint (model and tokenizer, Hugging Face format)."""
    output = Path(config.output)
    output.mkdir(parents=True, exist_ok=True)
    (output / "metrics.jsonl").unlink(missing_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(Path(config.data) / "policy")
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(Path(config.data) / "policy", dtype=torch.float32)
    examples = [encode_row(row, tokenizer) for row in read_rows(Path(config.data) / "sft.jsonl")]
    batches = make_batches(examples, config.batch_tokens, config.epochs, config.seed)
    arguments = TrainingArguments(
        output_dir=str(output),
        per_device_train_batch_size=1,
        max_steps=len(batches),
        learning_rate=config.learning_rate,
        adam_beta2=config.adam_beta2,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        lr_scheduler_type="cosine",
        warmup_steps=max(1, len(batches) // 50),
        logging_steps=config.log_every,
        save_strategy="no",
        report_to=[],
        seed=config.seed,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
    )
    trainer = _InOrder(
        model=model,
        args=arguments,
        train_dataset=_Batches(batches, tokenizer.pad_token_id),
        data_collator=lambda items: items[0],
        callbacks=[_Metrics(output / "metrics.jsonl")],
    )
    trainer.train()
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    return output


def main() -> None:
    parser = argparse.ArgumentParser(description="SFT cold start; see the docstring of rag_r1.training.sft.")
    parser.add_argument("--data", required=True, help="folder with sft.jsonl and policy/ (make_toy_data.py makes both)")
    parser.add_argument("--output", required=True, help="folder for the checkpoint and metrics.jsonl")
    parser.add_argument("--seed", type=int, default=SftConfig.seed, help="order of the rows")
    parser.add_argument("--learning-rate", type=float, default=SftConfig.learning_rate, help="peak")
    parser.add_argument("--batch-tokens", type=int, default=SftConfig.batch_tokens, help="most tokens of a batch")
    train(SftConfig(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
