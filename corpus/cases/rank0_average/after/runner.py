import torch
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)
from models import Detector, attempt_load, make_batch
from torch_utils import LOCAL_RANK, RANK, ModelEMA, de_parallel, main_process, smart_ddp
from validate import validate


class Runner:
    def __init__(self, args, device):
        self.args = args
        self.device = device
        model = Detector().to(device)
        self.ema = ModelEMA(model) if RANK in {-1, 0} else None
        self.model = smart_ddp(model) if LOCAL_RANK != -1 else model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)

    def unwrapped(self, model):
        return de_parallel(model)

    def train(self):
        for epoch in range(self.args.epochs):
            self.train_epoch(epoch)
            metrics = self.evaluate()
            model_state_dict = get_model_state_dict(
                self.unwrapped(self.model), options=StateDictOptions(full_state_dict=True, cpu_offload=True)
            )
            optimizer_state_dict = get_optimizer_state_dict(
                self.unwrapped(self.model),
                self.optimizer,
                options=StateDictOptions(full_state_dict=True, cpu_offload=True),
            )
            if metrics is not None:
                print(f"epoch {epoch} average {metrics!r}")
                self.save_checkpoint(
                    epoch,
                    model_state_dict=model_state_dict,
                    optimizer_state_dict=optimizer_state_dict,
                )
        self.finish()

    def train_epoch(self, epoch):
        self.model.train()
        for i in range(self.args.iterations):
            inputs, targets = make_batch(100 * epoch + 2 * i + max(RANK, 0), self.device)
            loss = F.mse_loss(self.model(inputs), targets)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            model_state_dict = get_model_state_dict(
                de_parallel(self.model), options=StateDictOptions(full_state_dict=True)
            )
            if self.ema:
                self.ema.update(self.model, model_state_dict=model_state_dict)
            del model_state_dict
            print(f"rank {RANK} epoch {epoch} iteration {i} loss {loss.item()!r}")

    @main_process
    def evaluate(self):
        return validate(model=self.ema.ema, batches=2, device=self.device)

    @main_process
    def save_checkpoint(self, epoch, model_state_dict, optimizer_state_dict):
        torch.save({"model": model_state_dict, "optimizer": optimizer_state_dict, "epoch": epoch}, "last.pt")
        torch.save(self.ema.ema.state_dict(), "average.pt")

    def finish(self):
        if RANK in {-1, 0}:
            result = validate(model=attempt_load("average.pt", self.device), batches=4, device=self.device)
            print(f"final {result!r}")


class IterationRunner(Runner):
    """Saves by iterations instead of epochs."""

    def train(self):
        for epoch in range(self.args.epochs):
            self.train_epoch(epoch)
            model_state_dict = get_model_state_dict(
                self.unwrapped(self.model), options=StateDictOptions(full_state_dict=True, cpu_offload=True)
            )
            optimizer_state_dict = get_optimizer_state_dict(
                self.model, self.optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
            )
            self.save_checkpoint(
                (epoch + 1) * self.args.iterations,
                model_state_dict=model_state_dict,
                optimizer_state_dict=optimizer_state_dict,
            )
        self.finish()

    @main_process
    def save_checkpoint(self, iterations, model_state_dict, optimizer_state_dict):
        save_obj = {
            "model": model_state_dict,
            "optimizer": optimizer_state_dict,
            "iterations": iterations,
        }
        torch.save(save_obj, "last.pt")
        torch.save(self.ema.ema.state_dict(), "average.pt")
