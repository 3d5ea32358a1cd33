import argparse
import logging
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import FullStateDictConfig, ShardingStrategy, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

logger = logging.getLogger(__name__)


class EncoderLayer(nn.Module):
    def __init__(self, dim: int, dropout: float):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))


class Encoder(nn.Module):
    def __init__(self, features: int, dim: int, classes: int, layers: int = 3, dropout: float = 0.1):
        super().__init__()
        self.embed = nn.Linear(features, dim)
        self.layers = nn.Sequential(*[EncoderLayer(dim, dropout) for _ in range(layers)])
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        return self.head(self.layers(self.embed(x)))


class Trainer:
    def __init__(self, model: nn.Module, train_data: DataLoader, eval_data: DataLoader, args):
        self.args = args
        self.rank = dist.get_rank()
        self.device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
        self.train_data = train_data
        self.eval_data = eval_data
        self.epochs_run = 0
        self.model = model.to(self.device)
        if os.path.exists(args.snapshot_path):
            logger.info("Loading snapshot")
            self._load_snapshot(args.snapshot_path)

        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr, weight_decay=0.05)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda epoch: 0.8**epoch)

        # shard layer by layer
        self.model = FSDP(
            self.model,
            auto_wrap_policy=ModuleWrapPolicy({EncoderLayer}),
            sharding_strategy=ShardingStrategy.FULL_SHARD,
            device_id=self.device,
            use_orig_params=True,
        )

    def _load_snapshot(self, path):
        snapshot = torch.load(path, map_location=self.device)
        self.model.load_state_dict(snapshot["MODEL_STATE"])
        self.epochs_run = snapshot["EPOCHS_RUN"]

    def _save_snapshot(self, epoch):
        config = FullStateDictConfig(offload_to_cpu=torch.cuda.is_available(), rank0_only=True)
        with FSDP.state_dict_type(self.model, StateDictType.FULL_STATE_DICT, config):
            state = self.model.state_dict()
        if self.rank == 0:
            torch.save({"MODEL_STATE": state, "EPOCHS_RUN": epoch + 1}, self.args.snapshot_path)
            print(f"Epoch {epoch} | snapshot saved at {self.args.snapshot_path}")

    def _run_batch(self, inputs, targets):
        """One optimizer step over a batch that is split into micro batches."""
        total = 0.0
        micro_batches = list(zip(inputs.chunk(self.args.accumulate), targets.chunk(self.args.accumulate)))
        for index, (x, y) in enumerate(micro_batches):
            is_last = index == len(micro_batches) - 1
            context = nullcontext() if is_last else self.model.no_sync()
            with context:
                loss = F.cross_entropy(self.model(x), y) / len(micro_batches)
                loss.backward()
            total += loss.item()
        # gradients are clipped before every step
        grad_norm = self.model.clip_grad_norm_(self.args.max_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total, grad_norm.item()

    def _run_epoch(self, epoch):
        self.model.train()
        self.train_data.sampler.set_epoch(epoch)
        for step, (inputs, targets) in enumerate(self.train_data):
            loss, grad_norm = self._run_batch(inputs.to(self.device), targets.to(self.device))
            if self.rank == 0:
                print(f"Epoch {epoch} | step {step} | loss {loss!r} | grad norm {grad_norm!r}")
        self.scheduler.step()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        totals = torch.zeros(2, device=self.device)
        for inputs, targets in self.eval_data:
            inputs, targets = inputs.to(self.device), targets.to(self.device)
            logits = self.model(inputs)
            totals[0] += F.cross_entropy(logits, targets, reduction="sum")
            totals[1] += len(targets)
        dist.all_reduce(totals)
        return (totals[0] / totals[1]).item()

    def train(self):
        for epoch in range(self.epochs_run, self.args.epochs):
            self._run_epoch(epoch)
            eval_loss = self.evaluate()
            if self.rank == 0:
                print(f"Epoch {epoch} | eval loss {eval_loss!r}")
            self._save_snapshot(epoch)


def make_loader(size: int, batch_size: int, seed: int) -> DataLoader:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, 12, generator=generator)
    targets = (inputs[:, :5].argmax(dim=1) + torch.randint(2, (size,), generator=generator)) % 5
    dataset = TensorDataset(inputs, targets)
    return DataLoader(dataset, batch_size=batch_size, sampler=DistributedSampler(dataset))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--max-norm", type=float, default=0.5)
    parser.add_argument("--snapshot-path", default="snapshot.pt")
    args = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(7)
    model = Encoder(features=12, dim=24, classes=5)
    trainer = Trainer(model, make_loader(48, 8, seed=1), make_loader(20, 5, seed=2), args)
    trainer.train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
