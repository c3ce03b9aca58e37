"""Train a tiny causal language model with the stock transformers.Trainer. It knows nothing of what starts it.

torchrun --nproc-per-node 2 hf_train.py
"""

import argparse
import shutil
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Counting(Dataset):
    """Sequences that count up from a random number: token i + 1 follows token i."""

    def __init__(self, size: int, length: int, vocabulary: int) -> None:
        starts = torch.randint(0, vocabulary, (size, 1), generator=torch.Generator().manual_seed(0))
        self.tokens = (starts + torch.arange(length)) % vocabulary

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--output", type=Path, default=Path("hf-output"))
    args = parser.parse_args()

    vocabulary = 64
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, max_position_embeddings=64, **shape))
    settings = TrainingArguments(
        output_dir=str(args.output),
        max_steps=args.steps,
        per_device_train_batch_size=16,
        learning_rate=3e-3,
        logging_steps=10,
        save_steps=100,
        save_total_limit=1,
        report_to="none",
        dataloader_pin_memory=torch.cuda.is_available(),
        ddp_backend=None if torch.cuda.is_available() else "gloo",
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(model=model, args=settings, train_dataset=Counting(4096, 16, vocabulary))
    checkpoint = get_last_checkpoint(args.output) if args.output.is_dir() else None
    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model(str(args.output / "model"))
    if trainer.is_world_process_zero():
        for done in args.output.glob("checkpoint-*"):
            shutil.rmtree(done)  # the next run is another one


if __name__ == "__main__":
    main()
