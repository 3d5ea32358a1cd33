import os
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import distribute_tensor
from training.distributed import prepare_module


@contextmanager
def optimizers_following(model, *optimizers):
    """Gives optimizers the parameters that sharding puts in the place of those they hold, and shards their state."""
    names = {parameter: name for name, parameter in model.named_parameters(remove_duplicate=False)}
    yield
    parameters = dict(model.named_parameters(remove_duplicate=False))
    sharded = {old: parameters[name] for old, name in names.items() if parameters[name] is not old}
    for optimizer in filter(None, optimizers):
        for group in optimizer.param_groups:
            group["params"] = [sharded.get(parameter, parameter) for parameter in group["params"]]
        for old in [parameter for parameter in optimizer.state if parameter in sharded]:
            new, state = sharded[old], optimizer.state.pop(old)
            optimizer.state[new] = {
                key: distribute_tensor(value, new.device_mesh, new.placements)
                if getattr(value, "shape", None) == new.shape
                else value
                for key, value in state.items()
            }


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
        with optimizers_following(self.model, optimizer):
            self.model = prepare_module(self.model)

    def load(self):
        checkpoint = torch.load(self.save_path)
        self.model.load_state_dict(checkpoint["model"])
        set_optimizer_state_dict(
            self.model,
            self.optimizer,
            checkpoint["optimizer"],
            options=StateDictOptions(full_state_dict=True),
        )
        self.scheduler.load_state_dict(checkpoint["scheduler"])
        self.step = checkpoint["step"]

    def save(self):
        checkpoint = {
            "model": get_model_state_dict(
                self.plain_model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
            ),
            "optimizer": get_optimizer_state_dict(
                self.plain_model,
                self.optimizer,
                options=StateDictOptions(full_state_dict=True, cpu_offload=True),
            ),
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
