"""Hugging Face's Trainer, with Gleaner exchanging the gradients: a callback and three lines.

    torchrun --nproc-per-node 2 examples/python/hugging_face.py

The model is a tiny GPT-2 from its configuration, and the data are this repository's pages: nothing is downloaded.
"""

import argparse
import pathlib
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import gleaner.torch

CONTEXT = 64


class Gleaner(TrainerCallback):
    """Registers Gleaner with the DistributedDataParallel that the Trainer puts around the model."""

    def __init__(self, **options):
        self.options = options
        self.trainer = None
        self.hook = None

    def on_step_begin(self, args, state, control, **kwargs):
        if self.hook is None and args.world_size > 1:
            self.hook = gleaner.torch.register(self.trainer.model_wrapped, **self.options)


class Pages(torch.utils.data.Dataset):
    """The book's bytes in pieces."""

    def __init__(self, part):
        root = pathlib.Path(__file__).resolve().parents[2]
        content = b"".join(page.read_bytes() for page in sorted(root.glob("docs/src/**/*.md")))
        pieces = torch.frombuffer(bytearray(content), dtype=torch.uint8).long().split(CONTEXT)[:-1]
        cut = len(pieces) * 9 // 10
        self.pieces = pieces[:cut] if part == "train" else pieces[cut : cut + 64]

    def __len__(self):
        return len(self.pieces)

    def __getitem__(self, index):
        return {"input_ids": self.pieces[index], "labels": self.pieces[index]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50)
    arguments = parser.parse_args()

    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=CONTEXT, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0))
    with tempfile.TemporaryDirectory() as folder:
        callback = Gleaner(method="spardl", density=0.01)                    # new
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                max_steps=arguments.steps,
                per_device_train_batch_size=8,
                learning_rate=2e-3,
                report_to=[],
                save_strategy="no",
                use_cpu=True,
                disable_tqdm=True,
            ),
            train_dataset=Pages("train"),
            eval_dataset=Pages("test"),
            callbacks=[callback],                                            # new
        )
        callback.trainer = trainer                                           # new
        trainer.train()
        # Not before: a model that was evaluated first is not wrapped for training after that.
        loss = trainer.evaluate()["eval_loss"]
    if trainer.is_world_process_zero():
        steps = "no" if callback.hook is None else callback.hook.step
        print(f"held-out loss {loss:.3f}; {steps} steps by Gleaner")


if __name__ == "__main__":
    main()
