import os

import torch
import torch.distributed as dist
from training.distributed import prepare_module


class Trainer:
    def __init__(self, model, loss_function, optimizer=None, save_path="checkpoint.pt", resume=False):
        if optimizer is None:
            if not any(parameter.requires_grad for parameter in model.parameters()):
                raise ValueError("there is nothing to train")
            decayed = [p for p in model.parameters() if p.requires_grad and p.dim() > 1]
            others = [p for p in model.parameters() if p.requires_grad and p.dim() <= 1]
            optimizer = torch.optim.AdamW(
                [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=5e-3
            )
        self.model = model
        self.loss_function = loss_function
        self.optimizer = optimizer
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 5, 0.5)
        self.save_path = save_path
        self.step = 0

        # the plain model takes the weights, and is wrapped afterwards
        if resume and os.path.exists(self.save_path):
            self.load()
        self.plain_model = self.model
        self.model = prepare_module(self.model)

    def load(self):
        checkpoint = torch.load(self.save_path)
        self.model.load_state_dict(checkpoint["model"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        self.scheduler.load_state_dict(checkpoint["scheduler"])
        self.step = checkpoint["step"]

    def save(self):
        checkpoint = {
            "model": self.plain_model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "step": self.step,
        }
        if dist.get_rank() == 0:
            torch.save(checkpoint, self.save_path)

    def fit(self, batches):
        for tokens in batches:
            logits = self.model(tokens[:, :-1])
            loss = self.loss_function(logits.flatten(0, 1), tokens[:, 1:].flatten())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.step += 1
            if dist.get_rank() == 0:
                print(f"step {self.step} loss {loss.item()!r}")
