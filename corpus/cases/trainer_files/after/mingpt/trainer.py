"""The training loop, for any model that returns logits and a loss."""

import os

import torch
import torch.distributed as dist

from mingpt.checkpoint import save_weights
from mingpt.distributed import is_main_process


class SortBatches:
    """Sequences of digits followed by the same digits in order."""

    def __init__(self, config, rank):
        self.config = config
        self.generator = torch.Generator().manual_seed(100 + rank)

    def next(self):
        digits = torch.randint(10, (self.config.batch_size, 6), generator=self.generator)
        tokens = torch.cat([digits, digits.sort(dim=1).values], dim=1)
        return tokens[:, :-1], tokens[:, 1:]


class Trainer:
    def __init__(self, config, model, device):
        self.config = config
        self.model = model
        self.device = device
        self.batches = SortBatches(config, dist.get_rank())
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, betas=(0.9, 0.95))

    def loss_on_next_batch(self):
        x, y = (t.to(self.device) for t in self.batches.next())
        logits, loss = self.model(x, y)
        return loss / self.config.micro_batches

    def step(self):
        loss = 0.0
        # only the last micro batch communicates
        for _ in range(self.config.micro_batches - 1):
            self.model.set_requires_gradient_sync(False)
            micro_loss = self.loss_on_next_batch()
            micro_loss.backward()
            self.model.set_requires_gradient_sync(True)
            loss += micro_loss.item()
        micro_loss = self.loss_on_next_batch()
        micro_loss.backward()
        loss += micro_loss.item()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_norm_clip).full_tensor()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss, float(norm)

    def run(self):
        self.model.train()
        for iteration in range(self.config.max_iters):
            loss, norm = self.step()
            if is_main_process():
                print(f"iter {iteration}: loss {loss!r} norm {norm!r}")

    def save(self):
        save_weights(self.model, os.path.join(self.config.out_dir, "model.pt"))
