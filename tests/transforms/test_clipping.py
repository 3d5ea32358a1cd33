"""Gradient clipping: where the norm that limits is another one than before, a finding says so."""

from __future__ import annotations

import pytest
from migrated_texts import migrated
from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.text.source import Source

PROGRAM = """import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(3)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.sum()


def run(options, x):
    torch.cuda.set_device(x.device)
    model = {wrap}
    model(x).backward()
    {clip}


if __name__ == "__main__":
    run({{}}, torch.ones(2, 2).cuda())
"""
CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"


def level_and_text(wrap: str, clip: str) -> tuple[str, str]:
    """The level of the finding about clipping, and the migrated program."""
    source = Source.decode("train.py", PROGRAM.format(wrap=wrap, clip=clip).encode())
    analysis = analyse([extract(source)], lambda _: source, Options(target_torch=(2, 13)), paths=["train.py"])
    assert not analysis.errors
    (level,) = {str(finding.level.value) for finding in analysis.findings if finding.rule == "FS303"}
    return level, analysis.texts["train.py"]


@pytest.mark.parametrize("clip", [CLIP, f"print({CLIP})", CLIP.replace("torch", "clip = torch").replace("(", "\n    clip(", 1)])
@pytest.mark.parametrize("wrap", ["FSDP(Net().cuda())", "FSDP(Net(), **options)"])
def test_torchs_clipping_of_fsdp1_knew_a_ranks_own_shards_alone(wrap: str, clip: str) -> None:
    assert level_and_text(wrap, clip)[0] == "review"


@pytest.mark.parametrize(("wrap", "clip"), [
    ("FSDP(Net().cuda())", "model.clip_grad_norm_(1.0)"),
    ("DDP(Net().cuda())", f"print({CLIP})"),
    ("FSDP(Net().cuda(), sharding_strategy=ShardingStrategy.NO_SHARD)", f"print({CLIP})"),
    ("FSDP(Net().cuda())", "torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)"),
])  # fmt: skip
def test_clipping_that_is_the_same_is_safe(wrap: str, clip: str) -> None:
    assert level_and_text(wrap, clip)[0] == "safe"


@pytest.mark.parametrize("clip", [
    f"if options.shard:\n        model.clip_grad_norm_(1.0)\n    else:\n        print({CLIP})",
    f"if not options.shard:\n        print({CLIP})\n    else:\n        model.clip_grad_norm_(1.0)",
    f"if options.shard:\n        return model.clip_grad_norm_(1.0)\n    print({CLIP})",
])  # fmt: skip
def test_torchs_clipping_beside_fsdp1s_own_is_of_plain_models(clip: str) -> None:
    assert level_and_text("FSDP(Net().cuda()) if options.shard else Net().cuda()", clip)[0] == "safe"


def test_torchs_clipping_is_left_where_all_is_sharded_alike() -> None:
    level, text = level_and_text("FSDP(Net().cuda())", CLIP)
    assert "fully_shard(model)" in text and f"    {CLIP}\n" in text
    assert level == "review"


@pytest.mark.parametrize(
    ("net", "options", "after"),
    [
        ("nn.Linear(4, 4)", "", "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()"),
        ("nn.Linear(4, 4).bfloat16()", "", "clip_model_grad_norm(model, 1.0)"),
        ("nn.Linear(4, 4)", ", cpu_offload=offload", "clip_model_grad_norm(model, 1.0)"),
        ("nn.Linear(4, 4)", ", ignored_modules=[offload]", "clip_model_grad_norm(model, 1.0)"),
        ("nn.Linear(4, 4)", ", **offload", "clip_model_grad_norm(model, 1.0)"),
    ],
)
def test_fsdp1s_own_clipping_is_torchs_where_all_is_sharded_alike(net: str, options: str, after: str) -> None:
    text = (
        "import torch\nfrom torch import nn\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
        f"def main(offload, x):\n    model = FSDP({net}{options})\n    model(x).sum().backward()\n"
        "    return model.clip_grad_norm_(1.0)\n"
    )
    assert f"return {after}" in migrated(train=text)["train"]


@pytest.mark.parametrize(("order", "is_torchs"), [("", True), (", norm_type=1.0", True), (", norm_type=float('inf')", False)])
def test_the_largest_gradient_is_not_left_to_torch(order: str, is_torchs: bool) -> None:
    """Of a rank's empty part of a tensor torch has no largest element, and raises on that rank."""
    for wrap, clip in (("DDP(Net().cuda())", CLIP[:-1]), ("FSDP(Net().cuda())", "model.clip_grad_norm_(1.0")):
        _, text = level_and_text(wrap, f"{clip}{order})")
        assert ("torch.nn.utils.clip_grad_norm_(" in text) == is_torchs, text


GENERAL = PROGRAM.replace("{wrap}", "DDP(Net(), find_unused_parameters=True)").replace("{clip}", CLIP).replace("{{}}", "{}")


@pytest.mark.parametrize(("old", "new", "by_torch"), [
    ("", "", True),
    ("super().__init__()", "super().__init__(); self.scale = torch.nn.Parameter(torch.tensor(1.0))", False),
    ("super().__init__()", "super().__init__(); import other; self.body = other.make()", False),
    ("    model(x).backward()", "    with model.no_sync():\n        model(x).backward()", False),
    (CLIP, "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, options['norm'])", False),
])  # fmt: skip
def test_where_the_general_form_shards_every_parameter_torch_clips(old: str, new: str, by_torch: bool) -> None:
    text = migrated(train=GENERAL.replace(old, new))["train"]
    assert "shard_like_ddp(Net(), find_unused_parameters=True)" in text
    assert ("    torch.nn.utils.clip_grad_norm_(model.parameters(), " in text) is by_torch
