"""Less usual things that scripts for CUDA and NCCL do, with what has to come of them as assertions."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x):
        scale = torch.ones(1, device=x.device) + torch.arange(1, device="cuda")
        return x + self.linear(self.norm(x)) * scale


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def train(rank):
    torch.manual_seed(0)
    model = torch.compile(Model().cuda(), backend="aot_eager")
    model = nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    model.register_comm_hook(None, bf16_compress_hook)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=1e-3)
    for _ in range(2):
        with torch.cuda.amp.autocast(dtype=torch.bfloat16):
            loss = model(torch.randn(4, 16, device=f"cuda:{rank}")).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def tensors(rank):
    with torch.device("cuda"):
        torch.zeros(3)
    with torch.device("meta"):
        assert nn.Linear(2, 2).weight.is_meta
    torch.set_default_device("cuda")
    torch.empty(2).fill_(1)
    torch.set_default_device(None)
    generator = torch.Generator(device="cuda")
    generator.manual_seed(1)
    assert isinstance(generator, torch.Generator) and isinstance(torch.default_generator, torch.Generator)
    values = torch.rand(2, generator=generator, device=rank).to(rank).to("cuda", torch.float64, non_blocking=True)
    snapshot = values.cpu()
    values.add_(1)
    assert not torch.equal(snapshot, values), "a copy on the host must not follow the tensor on the device"
    with torch.cuda.device(1 - rank):
        assert torch.cuda.current_device() == 1 - rank
    assert torch.cuda.current_device() == rank
    state = torch.cuda.get_rng_state()
    torch.cuda.set_rng_state(state)
    assert torch.cuda.get_device_properties(rank).total_memory > torch.cuda.memory_allocated()


def collectives(rank):
    received = [torch.empty(2).cuda() for _ in range(2)]
    dist.all_to_all(received, [torch.full((2,), float(rank)), torch.full((2,), rank + 10.0)])
    assert [part[0].item() for part in received] == ([0.0, 1.0] if rank == 0 else [10.0, 11.0])
    objects = [None, None]
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": 0}, {"rank": 1}]
    dist.broadcast_object_list(objects, src=0, device=torch.device("cuda", rank))
    value = torch.ones(3) * (rank + 1)
    if rank == 0:
        dist.send(value, 1)
    else:
        dist.recv(value, 0)
    assert value.sum() == 3
    for op, expected in ((dist.ReduceOp.SUM, 3.0), (dist.ReduceOp.AVG, 1.5), (dist.ReduceOp.MAX, 2.0)):
        value = torch.tensor([rank + 1.0], device="cuda")
        dist.all_reduce(value, op=op)
        assert value.item() == expected
    scattered = torch.empty(2)
    dist.reduce_scatter_tensor(scattered, torch.arange(4.0).cuda())
    assert scattered.tolist() == [4.0 * rank, 4.0 * rank + 2]
    group = dist.new_group([0], backend="nccl")
    if rank == 0:
        dist.all_reduce(torch.ones(1), group=group)
        assert dist.get_backend(group) == "nccl"
    mesh = init_device_mesh("cuda", (2, 1), mesh_dim_names=("replicate", "shard"))
    assert mesh["replicate"].size() == 2
    work = dist.all_reduce(value, async_op=True)
    work.wait()
    dist.barrier(device_ids=[rank])


def main():
    dist.init_process_group("cpu:gloo,cuda:nccl")
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    train(rank)
    tensors(rank)
    collectives(rank)
    dist.destroy_process_group()


main()
