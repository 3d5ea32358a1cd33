import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def SteppingFSDP(module, policy, half=False, scale=1.5):
    """The model, sharded, knows how to train on a batch."""
    module.__class__ = type(module.__class__.__name__, (Steps, module.__class__), {})
    unit_policy = root_policy = MixedPrecisionPolicy()
    if half:
        root_policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        unit_policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
    for child in reversed(list(module.modules())[1:]):
        if policy(child):
            fully_shard(child, mp_policy=unit_policy)
    fully_shard(module, mp_policy=root_policy)
    module.scale = scale
    return module


class Steps:
    def forward(self, x):
        return super().forward(x) / self.scale

    def __call__(self, batch):
        inputs, labels = batch
        return self.compute_loss(super().__call__(inputs), labels)

    def train_step(self, batches, optimizer):
        losses = []
        for batch in batches[:-1]:
            self.set_requires_gradient_sync(False)
            losses.append(self._backward(batch, len(batches)))
        self.set_requires_gradient_sync(True)
        losses.append(self._backward(batches[-1], len(batches)))
        optimizer.step()
        optimizer.zero_grad()
        return sum(losses)

    @torch.no_grad()
    def val_step(self, batch):
        return self(batch).item()

    def full_state(self):
        return get_model_state_dict(self, options=StateDictOptions(full_state_dict=True, cpu_offload=True))

    def _backward(self, batch, count):
        loss = self(batch) / count
        loss.backward()
        return loss.item()
