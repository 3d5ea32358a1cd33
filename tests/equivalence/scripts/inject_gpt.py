"""A small transformer, trained under every wrapper and precision: what the record of a run is tried on."""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

VOCABULARY, LENGTH, WIDTH = 61, 16, 32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, 4, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(width, 2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("temperature", torch.ones(()))
        if frozen:
            self.blocks[0].requires_grad_(False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        for block in self.blocks:
            hidden = block(hidden)
        logits = self.head(self.norm(hidden)).float() * self.temperature
        return F.cross_entropy(logits.reshape(-1, VOCABULARY), y.reshape(-1))


def wrapped(model: nn.Module, options: argparse.Namespace) -> nn.Module:
    low = None if options.autocast else {"bf16": torch.bfloat16, "fp16": torch.float16}.get(options.precision)
    mesh: Any = None
    if options.hybrid:
        shape = (dist.get_world_size() // 2, 2)
        mesh = dist.device_mesh.init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    if options.checkpointing:
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

        apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Block))
    if options.wrap == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if options.wrap.startswith("fsdp1"):
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        more = {"device_mesh": mesh, "sharding_strategy": ShardingStrategy.HYBRID_SHARD} if options.hybrid else {}
        return FSDP(
            model,
            auto_wrap_policy=ModuleWrapPolicy({Block}),
            use_orig_params=options.wrap == "fsdp1",
            mixed_precision=MixedPrecision(param_dtype=low, reduce_dtype=torch.float32) if low else None,
            sync_module_states=True,
            **more,
        )
    if options.wrap == "fsdp2":
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32) if low else MixedPrecisionPolicy()
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        return fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def not_synchronising(model: nn.Module, options: argparse.Namespace, last: bool) -> Any:
    if options.wrap == "fsdp2":
        model.set_requires_gradient_sync(last)
    elif not last and options.wrap != "plain":
        return model.no_sync()
    return contextlib.nullcontext()


def save(model: nn.Module, optimizer: torch.optim.Optimizer, options: argparse.Namespace) -> None:
    if options.wrap.startswith("fsdp1"):
        from torch.distributed.fsdp import FullStateDictConfig, StateDictType
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
            state, moments = model.state_dict(), FSDP.optim_state_dict(model, optimizer)
    elif options.wrap == "fsdp2":
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

        state, moments = get_state_dict(
            model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
        )
    else:
        state, moments = getattr(model, "module", model).state_dict(), optimizer.state_dict()
    if dist.get_rank() == 0:
        torch.save({"model": state, "optimizer": moments}, options.save)


def clip_parts(parameters: list[torch.Tensor], limit: float) -> None:
    """One norm over two halves, as code does for parameters of several meshes."""
    halves = [parameters[::2], parameters[1::2]]
    norms = [torch.nn.utils.get_total_norm([p.grad for p in half if p.grad is not None]) for half in halves]
    total = torch.linalg.vector_norm(torch.stack([norm.full_tensor() for norm in norms]))
    for half in halves:
        torch.nn.utils.clip_grads_with_norm_(half, limit, total)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--wrap", default="ddp", choices=("plain", "ddp", "fsdp1", "fsdp1-flat", "fsdp2"))
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16", "fp16"))
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--clip", type=float, default=0.2)
    parser.add_argument("--save")
    for flag in ("hybrid", "checkpointing", "frozen", "autocast", "early-optimizer", "clip-parts"):
        parser.add_argument(f"--{flag}", action="store_true")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    model: nn.Module = GPT(options.frozen)
    early = torch.optim.AdamW(model.parameters(), lr=3e-3) if options.early_optimizer else None
    model = wrapped(model, options)
    optimizer = early or torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=options.precision == "fp16")
    low = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(options.precision)
    cast = torch.autocast("cpu", low) if low and options.autocast else contextlib.nullcontext()
    random = torch.Generator().manual_seed(99 + dist.get_rank())
    for _ in range(options.steps):
        for micro in range(options.accumulate):
            data = torch.randint(0, VOCABULARY, (2, LENGTH + 1), generator=random)
            with not_synchronising(model, options, micro == options.accumulate - 1):
                with cast:
                    loss = model(data[:, :-1], data[:, 1:]) / options.accumulate
                scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if options.clip and options.wrap.startswith("fsdp1"):
            model.clip_grad_norm_(options.clip)
        elif options.clip and options.clip_parts:
            clip_parts(list(model.parameters()), options.clip)
        elif options.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        print(f"loss {loss.item():.9f}", flush=True)
    if options.save:
        save(model, optimizer, options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
