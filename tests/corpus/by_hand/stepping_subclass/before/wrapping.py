import torch
from torch.distributed.fsdp import FullyShardedDataParallel, FullStateDictConfig, MixedPrecision, StateDictType


class SteppingFSDP(FullyShardedDataParallel):
    """The wrapper knows how to train on a batch."""

    def __init__(self, module, policy, half=False, scale=1.5):
        precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if half else None
        super().__init__(
            module,
            auto_wrap_policy=policy,
            mixed_precision=precision,
            device_id=torch.device("cpu"),
            use_orig_params=True,
        )
        self.scale = scale

    def forward(self, x):
        return super().forward(x) / self.scale

    def __call__(self, batch):
        inputs, labels = batch
        return self.module.compute_loss(super().__call__(inputs), labels)

    def train_step(self, batches, optimizer):
        losses = []
        for batch in batches[:-1]:
            with self.no_sync():
                losses.append(self._backward(batch, len(batches)))
        losses.append(self._backward(batches[-1], len(batches)))
        optimizer.step()
        optimizer.zero_grad()
        return sum(losses)

    @torch.no_grad()
    def val_step(self, batch):
        return self(batch).item()

    def full_state(self):
        config = FullStateDictConfig(rank0_only=True)
        with FullyShardedDataParallel.state_dict_type(self, StateDictType.FULL_STATE_DICT, config):
            return self.state_dict()

    def _backward(self, batch, count):
        loss = self(batch) / count
        loss.backward()
        return loss.item()
