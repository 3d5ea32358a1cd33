"""Written for GPUs and NCCL alone, in the manner of training scripts that have never seen a CPU."""

import os
import sys
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed import init_process_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FullStateDictConfig,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

wrap, target = sys.argv[1], sys.argv[2]
init_process_group(backend="nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
assert dist.get_backend() == "nccl" and torch.cuda.device_count() >= dist.get_world_size()
device = f"cuda:{local_rank}"
torch.cuda.set_device(device)
assert torch.cuda.current_device() == local_rank
torch.manual_seed(1337)
torch.cuda.manual_seed_all(1337)
torch.backends.cuda.matmul.allow_tf32 = True


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.blocks = nn.ModuleList(Block(32) for _ in range(2))
        self.head = nn.Linear(32, 64)

    def forward(self, x):
        x = self.embed(x) + torch.zeros(1, device=x.device) + torch.arange(1, device="cuda")
        for block in self.blocks:
            x = block(x)
        return self.head(x)


model = Net()
if wrap == "ddp":
    model = DDP(model.to(device), device_ids=[local_rank], output_device=local_rank)
elif wrap == "fsdp1":
    model = FSDP(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_id=torch.cuda.current_device(),
        sharding_strategy=ShardingStrategy.FULL_SHARD,
        backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
        mixed_precision=MixedPrecision(),
        sync_module_states=True,
        limit_all_gathers=True,
        use_orig_params=True,
    )
else:
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    model.to("cuda")
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
scaler = torch.cuda.amp.GradScaler(init_scale=2.0**12)
random = torch.Generator(device="cpu").manual_seed(5)
dataset = TensorDataset(torch.randint(0, 64, (64, 9), generator=random))
sampler = DistributedSampler(dataset, shuffle=True)
loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=1, pin_memory=True, drop_last=True)
stream, start, end = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

begun = time.time()
for step, (batch,) in enumerate(loader):
    start.record()
    with torch.cuda.stream(stream):
        batch = batch.cuda(non_blocking=True)
    torch.cuda.current_stream().wait_stream(stream)
    for micro in range(2):
        last = micro == 1
        if wrap == "fsdp2":
            model.set_requires_gradient_sync(last)
        with nullcontext() if last or wrap == "fsdp2" else model.no_sync():
            with torch.autocast(device_type="cuda", dtype=torch.float16):
                logits = model(batch[:, :-1])
            loss = F.cross_entropy(logits.float().view(-1, 64), batch[:, 1:].reshape(-1)) / 2
            scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    if wrap == "fsdp1":
        norm = model.clip_grad_norm_(0.5)
    else:
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    end.record()
    torch.cuda.synchronize()
    mean = loss.detach().clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    if rank == 0:
        memory = torch.cuda.max_memory_allocated() / 2**20
        milliseconds = start.elapsed_time(end)
        print(f"step {step} loss {mean.item():.6f} norm {norm.item():.4f} {memory:.0f} MiB {milliseconds:.0f} ms")
    if step == 2:
        break
torch.cuda.empty_cache()

if wrap == "fsdp1":
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, True)):
        state, moments = model.state_dict(), FSDP.optim_state_dict(model, optimizer)
elif wrap == "fsdp2":
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    state, moments = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
else:
    state, moments = model.module.state_dict(), optimizer.state_dict()
if rank == 0:
    torch.save({"model": state, "optimizer": moments}, target)
dist.barrier(device_ids=[local_rank])
dist.destroy_process_group()
