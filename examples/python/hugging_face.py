"""Hugging Face's Trainer, with Gleaner exchanging the gradients: a callback and three lines.

    torchrun --nproc-per-node 2 examples/python/hugging_face.py

The model is a tiny GPT-2 from its configuration, and the data are a text in this repository: nothing is downloaded.
"""

import argparse
import pathlib
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

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


class Pieces(torch.utils.data.Dataset):
    """The bytes of a text in pieces: nine tenths to train with, 64 pieces of the rest to test."""

    def __init__(self, part):
        path = pathlib.Path(__file__).resolve().parents[2] / "trainer/data/documentation.txt"
        pieces = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).long().split(CONTEXT)[:-1]
        cut = len(pieces) * 9 // 10
        self.pieces = pieces[:cut] if part == "train" else pieces[cut : cut + 64]

    def __len__(self):
        return len(self.pieces)

    def __getitem__(self, index):
        return {"input_ids": self.pieces[index], "labels": self.pieces[index]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--merge", default="optimal", help="how parameters are merged into groups; optimal measures the first steps")
    arguments = parser.parse_args()

    # Before the model is made: the Trainer sets its own seed after that.
    set_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=CONTEXT, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0))
    with tempfile.TemporaryDirectory() as folder:
        callback = Gleaner(method="spardl", density=0.01, merge=arguments.merge)    # new
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
            train_dataset=Pieces("train"),
            eval_dataset=Pieces("test"),
            callbacks=[callback],                                                   # new
        )
        callback.trainer = trainer                                                  # new
        trainer.train()
        # Not before: a model that was evaluated first is not wrapped for training after that.
        loss = trainer.evaluate()["eval_loss"]
    if trainer.is_world_process_zero():
        steps = "no" if callback.hook is None else callback.hook.step
        print(f"held-out loss {loss:.3f}; {steps} steps by Gleaner")


if __name__ == "__main__":
    main()
