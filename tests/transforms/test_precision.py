"""What casts inputs, and what units of their own take, after the migration of a precision."""

from __future__ import annotations

from migrating import analyse_texts
from to_fsdp2.transforms.engine import Options
from to_fsdp2.transforms.findings import Level

_POLICY = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


def is_sharded(model):
    return isinstance(model, FSDP)


def precision(dtype):
    return MixedPrecision(param_dtype=dtype{more})
"""

_NORMALISED = """\
import torch
from torch import nn
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x):
        return self.norm(x)


def shard(model, strategy):
    torch.cuda.set_device(0)
    return FSDP(
        model,
        sharding_strategy=ShardingStrategy.{strategy},
        cpu_offload=CPUOffload(True),
        auto_wrap_policy=ModuleWrapPolicy({{Block}}),
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    )
"""

_CASTING = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def forward(self, x):
        return x


def train(model: nn.Module, batch):
    model = FSDP(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16),
    )
    with CONTEXT:
        model(batch).sum().backward()
"""


def _policy_finding(more: str) -> tuple[Level, str]:
    analysis, _ = analyse_texts({"config.py": _POLICY.format(more=more)})
    finding = next(f for f in analysis.findings if f.rule == "FS201" and f.symbol.endswith("MixedPrecision"))
    return finding.level, finding.message


def test_policy_without_a_wrap_names_the_inputs_that_it_casts() -> None:
    level, message = _policy_finding("")
    assert level is Level.REVIEW
    assert "cast_forward_inputs=False" in message


def test_policy_that_cast_the_inputs_of_units_means_the_same() -> None:
    level, message = _policy_finding(", cast_forward_inputs=True")
    assert level is Level.SAFE
    assert "cast_forward_inputs" not in message


def test_normalisation_is_sharded_as_the_rest_is() -> None:
    _, results = analyse_texts({"train.py": _NORMALISED.format(strategy="NO_SHARD")})
    units = results["train.py"].split("isinstance(module, _BatchNorm):")[1].split("for module")[0]
    assert "module, mesh=mesh, mp_policy=batch_norm_mp_policy, offload_policy=offload_policy" in units


def test_normalisation_keeps_its_parameters_where_the_rest_does() -> None:
    text = _NORMALISED.format(strategy="SHARD_GRAD_OP")
    _, results = analyse_texts({"train.py": text}, Options(target_torch=(2, 8)))
    assert results["train.py"].count("reshard_after_forward=False") == 3


def test_units_under_autocast_keep_their_float32_inputs() -> None:
    context = "torch.autocast('cuda', torch.bfloat16)"
    _, results = analyse_texts({"train.py": _CASTING.replace("CONTEXT", context)})
    assert "unit_mp_policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=False)" in results["train.py"]
    _, results = analyse_texts({"train.py": _CASTING.replace("CONTEXT", "torch.enable_grad()")})
    assert "cast_forward_inputs" not in results["train.py"]


def test_policy_from_elsewhere_names_the_inputs_of_units() -> None:
    text = _CASTING.replace("CONTEXT", "torch.enable_grad()").replace("forward(self, x)", "forward(self, x, mask)")
    text = text.replace("MixedPrecision(param_dtype=torch.bfloat16)", "precision").replace("batch)", "batch, precision)", 1)
    analysis, _ = analyse_texts({"train.py": text})
    finding = next(f for f in analysis.findings if f.rule == "FS200")
    assert finding.level is Level.REVIEW
    assert "cast_forward_inputs=False" in finding.message
