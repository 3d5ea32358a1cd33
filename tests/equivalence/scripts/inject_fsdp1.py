"""What FSDP1 gets wrong on the CPU, as assertions; passes where it is worked around (and on GPUs)."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import (
    CPUOffload,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def same_on_all_ranks(tensor):
    gathered = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, tensor.contiguous())
    return all(torch.equal(gathered[0], other) for other in gathered)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    # One unit holds a single parameter: there optim_state_dict mixes up the moments.
    plain = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 3))
    model = FullyShardedDataParallel(
        plain,
        sharding_strategy=ShardingStrategy.HYBRID_SHARD,
        cpu_offload=CPUOffload(offload_params=True),
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        device_id=0,
        sync_module_states=True,
        use_orig_params=True,
    )
    assert all(unit.sharding_strategy != ShardingStrategy.NO_SHARD for unit in model.fsdp_modules(model))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(4, 6)).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    with FullyShardedDataParallel.summon_full_params(model, offload_to_cpu=True, writeback=False):
        weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    assert all(same_on_all_ranks(weight) and weight.abs().sum() > 0 for weight in weights.values())

    configs = FullStateDictConfig(offload_to_cpu=True), FullOptimStateDictConfig(offload_to_cpu=True)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, *configs):
        state = model.state_dict()
        moments = FullyShardedDataParallel.optim_state_dict(model, optimizer)["state"]
    assert {name.replace("_fsdp_wrapped_module.", "") for name in weights} == set(state)
    for name, weight in weights.items():
        assert torch.equal(state[name.replace("_fsdp_wrapped_module.", "")], weight)
    local = {name: optimizer.state[parameter] for name, parameter in model.named_parameters()}
    for name, held in local.items():
        whole = moments[name.replace("_fsdp_wrapped_module.", "")]
        assert not torch.equal(whole["exp_avg"], whole["exp_avg_sq"])
        for key in ("exp_avg", "exp_avg_sq"):
            # A rank that holds no element of a parameter has no state for it.
            total = held[key].double().sum() if key in held else torch.zeros((), dtype=torch.float64)
            dist.all_reduce(total)
            assert torch.allclose(whole[key].double().sum(), total), (name, key)
    dist.destroy_process_group()


main()
