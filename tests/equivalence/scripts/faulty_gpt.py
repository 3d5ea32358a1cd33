"""A small transformer whose migration to fully_shard can be given one mistake at a time (`--fault`).

Old side: `--wrap ddp` or `--wrap fsdp1`; new side: `--wrap fsdp2`, with or without a fault.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

VOCABULARY, LENGTH, WIDTH, LAYERS = 64, 16, 32, 3


class Block(nn.Module):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(options.dropout)
        self.register_buffer("average", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, 4, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(width, 2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(attended.transpose(1, 2).reshape(batch, length, width)))
        x = x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))
        if self.training:
            self.average.mul_(0.9).add_(0.1 * x.detach().mean((0, 1)).to(self.average.dtype))
        return x


class GPT(nn.Module):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(options) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, 0, 0.05)
        self.head.weight = self.tokens.weight
        # A float table that enters the computation, as rotary frequencies do; not in the state dict.
        self.register_buffer("table", torch.linspace(0.501, 1.499, WIDTH), persistent=False)
        self.unused = nn.Linear(WIDTH, WIDTH) if options.unused else None

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        hidden = hidden * self.table.to(self.tokens.weight.dtype)
        for block in self.blocks:
            hidden = block(hidden)
        logits = self.head(self.norm(hidden)).float()
        return F.cross_entropy(logits.reshape(-1, VOCABULARY), y.reshape(-1))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--wrap", default="fsdp2", choices=("ddp", "fsdp1", "fsdp2"))
    parser.add_argument("--fault", default="")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16", "fp16"))
    parser.add_argument("--clip", type=float, default=0.2)
    parser.add_argument("--optimizer", default="adamw", choices=("adamw", "sgd"))
    parser.add_argument("--groups", default="name", choices=("name", "dim"))
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--save", default="")
    for flag in (
        "checkpointing",
        "hybrid",
        "evaluate",
        "unused",
        "seeds",
        "hook",
        "buffer-dtype",
        "compress",
        "frozen",
        "abort",
    ):
        parser.add_argument(f"--{flag}", action="store_true")
    return parser.parse_args()


def low_precision(options: argparse.Namespace) -> torch.dtype | None:
    return torch.bfloat16 if options.precision == "bf16" else None


def wrap_fsdp1(model: nn.Module, options: argparse.Namespace) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

    low = low_precision(options)
    more: dict[str, Any] = {}
    if options.hybrid:
        mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("replicate", "shard"))
        more = {"device_mesh": mesh, "sharding_strategy": ShardingStrategy.HYBRID_SHARD}
    buffers = low if options.buffer_dtype else torch.float32
    return FSDP(
        model,
        auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
        use_orig_params=True,
        device_id=torch.device("cpu"),
        mixed_precision=MixedPrecision(low, torch.float32, buffers) if low else None,
        **more,
    )


def policy_of(options: argparse.Namespace, fault: str) -> Any:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    low = low_precision(options)
    if fault == "precision_added":
        return MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    if low is None or fault == "precision_lost":
        reduce = torch.float16 if options.compress and fault != "compression_lost" else None
        return MixedPrecisionPolicy(reduce_dtype=reduce)
    reduce = None if fault == "reduce_dtype_lost" else torch.float32
    return MixedPrecisionPolicy(low, reduce, output_dtype=low if fault == "output_dtype" else None)


def wrap_fsdp2(model: nn.Module, options: argparse.Namespace) -> nn.Module:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    fault, world = options.fault, dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    if options.hybrid and fault != "hybrid_lost":
        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("replicate", "shard"))
    if fault == "wrong_mesh":
        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("data", "tensor"))["tensor"]
    more: dict[str, Any] = {"mesh": mesh, "mp_policy": policy_of(options, fault)}
    blocks = list(model.blocks)
    if fault == "keep_unsharded":
        more["reshard_after_forward"] = False
    if options.buffer_dtype and fault != "buffer_dtype_lost":
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                persistent = name not in module._non_persistent_buffers_set
                module.register_buffer(name, buffer.to(low_precision(options)), persistent)
    if fault == "ignored":
        more["ignored_params"] = set(blocks[0].parameters())
        blocks = blocks[1:]
    elif fault == "root_only":
        blocks = []
    elif fault == "one_block_missing":
        blocks = blocks[1:]
    elif fault == "root_first":
        fully_shard(model, **more)
    for number, block in enumerate(blocks):
        own = {"mp_policy": MixedPrecisionPolicy()} if fault == "policy_on_root_only" and number else {}
        fully_shard(block, **{**more, **own})
    if fault not in ("root_first", "root_missing"):
        fully_shard(model, **more)
    if fault == "gradients_summed":
        for module in model.modules():
            if hasattr(module, "set_gradient_divide_factor"):
                module.set_gradient_divide_factor(1.0)
    if fault == "divided_twice":
        for module in model.modules():
            if hasattr(module, "set_gradient_divide_factor"):
                module.set_gradient_divide_factor(float(world * world))
    if fault == "unused_reduced" and hasattr(model, "set_reduce_scatter_unused_params"):
        for module in model.modules():
            if hasattr(module, "set_reduce_scatter_unused_params"):
                module.set_reduce_scatter_unused_params(True)
    return model


def optimizer_of(model: nn.Module, options: argparse.Namespace) -> torch.optim.Optimizer:
    def decays(name: str, parameter: torch.Tensor) -> bool:
        if options.groups == "dim":
            return parameter.dim() >= 2
        return name.endswith("weight") and "norm" not in name

    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for name, p in named if decays(name, p)], "weight_decay": 0.1},
        {"params": [p for name, p in named if not decays(name, p)], "weight_decay": 0.0},
    ]
    if options.fault == "groups_lost":
        groups = [{"params": [p for _, p in named]}]
    groups = [group for group in groups if group["params"]]
    if options.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    betas = (0.9, 0.999) if options.fault == "betas_lost" else (0.9, 0.95)
    rate = 3e-3 * (1.1 if options.fault == "learning_rate" else 1.0)
    cls = torch.optim.Adam if options.fault == "other_optimizer" else torch.optim.AdamW
    return cls(groups, lr=rate, betas=betas, weight_decay=0.1)


def build(options: argparse.Namespace) -> tuple[nn.Module, torch.optim.Optimizer]:
    fault, rank = options.fault, dist.get_rank()
    torch.manual_seed(7 + (rank if options.seeds else 0))
    model: nn.Module = GPT(options)
    if fault == "tie_broken":
        model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    if fault == "epsilon":
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = 1e-3
    if options.frozen and fault != "frozen_lost":
        model.positions.requires_grad_(False)
    if options.hook and options.wrap == "fsdp2" and fault != "hook_lost":
        # What the hook did to the gradient of each rank is linear, so that it can be done once, after reduction.
        options.after_backward = lambda m: m.positions.weight.grad.mul_(0.5)
    elif options.hook and options.wrap == "ddp":
        model.positions.weight.register_hook(lambda gradient: gradient * 0.5)
    optimizer = optimizer_of(model, options) if fault == "optimizer_first" else None
    if options.seeds and options.wrap == "fsdp2" and fault != "broadcast_lost":
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.detach(), 0)
    if options.checkpointing and fault != "checkpointing_lost":
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

        apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Block))
    if options.wrap == "ddp":
        model = nn.parallel.DistributedDataParallel(model, find_unused_parameters=options.unused)
        if options.compress:
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

            model.register_comm_hook(None, fp16_compress_hook)
    else:
        model = (wrap_fsdp1 if options.wrap == "fsdp1" else wrap_fsdp2)(model, options)
    if fault == "meta_lost":
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
    if fault == "table_lost":
        model.table.zero_()
    return model, optimizer or optimizer_of(model, options)


def not_synchronising(model: nn.Module, options: argparse.Namespace, last: bool) -> Any:
    if options.wrap != "fsdp2":
        return contextlib.nullcontext() if last else model.no_sync()
    fault = options.fault
    if fault == "sync_always":
        model.set_requires_gradient_sync(True)
    elif fault == "sync_never":
        model.set_requires_gradient_sync(False)
    elif fault == "sync_root_only":
        model.set_requires_gradient_sync(last, recurse=False)
    elif fault == "last_backward":
        model.set_is_last_backward(last)
    elif fault == "ddp_attribute":
        model.require_backward_grad_sync = last
    else:
        model.set_requires_gradient_sync(last)
    return contextlib.nullcontext()


def clip(model: nn.Module, options: argparse.Namespace) -> None:
    fault = options.fault
    if not options.clip or fault == "clip_lost":
        return
    if options.wrap == "fsdp1":
        model.clip_grad_norm_(options.clip)
    elif fault == "clip_local":
        local = [p.grad.to_local() for p in model.parameters()]
        norm = torch.linalg.vector_norm(torch.stack([gradient.norm() for gradient in local]))
        for gradient in local:
            gradient.mul_((options.clip / (norm + 1e-6)).clamp(max=1.0))
    elif fault == "clip_part":
        torch.nn.utils.clip_grad_norm_(model.blocks.parameters(), options.clip)
    else:
        torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, options: argparse.Namespace) -> None:
    fault, rank = options.fault, dist.get_rank()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** (8 if fault == "scale" else 10))
    scaled = options.precision == "fp16" and fault != "scaler_lost"
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / 100)))
    random = torch.Generator().manual_seed(99 + (0 if fault == "same_data" else rank))
    if options.dropout and fault != "seed_lost":
        torch.manual_seed(4242 + rank)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        data = torch.randint(0, VOCABULARY, (2, LENGTH + 1), generator=random)
        return data[:, :-1], data[:, 1:]

    for step in range(options.steps):
        for micro in range(options.accumulation):
            last = micro == options.accumulation - 1 and not (fault == "window_unsynced" and step == 2)
            x, y = batch()
            with not_synchronising(model, options, last):
                call = model.forward if fault == "forward_bypassed" else model
                loss = call(x, y)
                loss = loss if fault == "loss_not_divided" else loss / options.accumulation
                (scaler.scale(loss) if scaled else loss).backward()
            if options.abort and step == 1 and micro == 0:
                optimizer.zero_grad()
        if options.wrap == "fsdp2" and hasattr(options, "after_backward"):
            options.after_backward(model)
        if scaled and fault != "unscale_lost":
            scaler.unscale_(optimizer)
        clip(model, options)
        if scaled:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        if fault != "schedule_lost":
            schedule.step()
        if options.evaluate:
            evaluate(model, options, batch if fault == "data_consumed" else None)
        if fault == "stale_zero_grad":
            model.zero_grad()
        elif fault != "zero_grad_lost":
            optimizer.zero_grad()


def evaluate(model: nn.Module, options: argparse.Namespace, batch: Any) -> None:
    model.eval()
    with torch.no_grad():
        x = torch.arange(2 * LENGTH).view(2, LENGTH) % VOCABULARY
        model(*(batch() if batch else (x, x)))
    model.train()


def save(model: nn.Module, optimizer: torch.optim.Optimizer, options: argparse.Namespace) -> None:
    fault = options.fault
    if options.wrap == "fsdp1":
        from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig, StateDictType
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        configs = FullStateDictConfig(rank0_only=True), FullOptimStateDictConfig(rank0_only=True)
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, *configs):
            state, moments = model.state_dict(), FSDP.optim_state_dict(model, optimizer)
    elif options.wrap == "ddp":
        state, moments = model.module.state_dict(), optimizer.state_dict()
    else:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

        full = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state, moments = get_state_dict(model, optimizer, options=full)
        if options.buffer_dtype:
            # FSDP1 saves buffers in the type that they had before it cast them.
            state = {key: value.float() if "average" in key else value for key, value in state.items()}
        if fault == "saved_shard":
            state = {key: v.to_local() if hasattr(v, "to_local") else v for key, v in model.state_dict().items()}
        elif fault == "saved_dtensors":
            state = model.state_dict()
        elif fault == "saved_without_buffers":
            state = {key: value for key, value in state.items() if "average" not in key}
        elif fault == "saved_without_optimizer":
            moments = {}
        elif fault == "saved_cast":
            state = {key: value.bfloat16() for key, value in state.items()}
        elif fault == "saved_with_prefix":
            state = {f"module.{key}": value for key, value in state.items()}
        elif fault == "saved_before_last_step":
            state = {key: value * 1.0001 for key, value in state.items()}
    if dist.get_rank() == 0:
        torch.save({"model": state, "optimizer": moments, "step": options.steps}, options.save)


def main() -> None:
    options = parse()
    dist.init_process_group("gloo")
    model, optimizer = build(options)
    train(model, optimizer, options)
    if options.save and options.fault != "not_saved":
        save(model, optimizer, options)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
