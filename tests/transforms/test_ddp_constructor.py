"""What a DDP constructor becomes, argument by argument and place by place."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.engine import Options
from to_fsdp2.transforms.findings import Level

HEAD = """\
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = {layer}

    def forward(self, x):
        return self.layer(x)


torch.cuda.set_device(0)
model = Net()
"""


def migrate(
    body: str, layer: str = "nn.Linear(8, 8)", options: Options | None = None
) -> tuple[str, dict[str, list[Level]]]:
    """The migrated text behind the model's construction, and the levels by rule."""
    analysis, results = analyse_texts({"train.py": HEAD.format(layer=layer) + body}, options)
    levels: dict[str, list[Level]] = {}
    for finding in analysis.findings:
        levels.setdefault(finding.rule, []).append(finding.level)
    return results["train.py"].partition("model = Net()\n")[2], levels


BROADCAST = "for tensor in [*model.parameters(), *model.buffers()]:\n    dist.broadcast(tensor.detach(), src=0)\n"


@pytest.mark.parametrize(
    "argument",
    [
        "device_ids=[0]", "output_device=0", "dim=0", "broadcast_buffers=True", "broadcast_buffers=False",
        "forward_sync_buffers=True", "find_unused_parameters=False", "static_graph=True", "check_reduction=False",
        "bucket_cap_mb=25", "gradient_as_bucket_view=True", "init_sync=True", "process_group=None", "device_mesh=None",
        "mixed_precision=None", "batched_grad_copy=True", "skip_all_reduce_unused_params=False",
        "delay_all_reduce_named_params=None", "param_to_hook_all_reduce=None",
    ],
)  # fmt: skip
def test_arguments_without_effect_on_numbers_go(argument: str) -> None:
    text, levels = migrate(f"model = DDP(model, {argument})\n")
    assert text == BROADCAST + "fully_shard(model)\n"
    assert levels["FS121"] == [Level.SAFE]


def test_without_init_sync_nothing_is_broadcast() -> None:
    text, _ = migrate("model = DDP(model, init_sync=False)\n")
    assert text == "fully_shard(model)\n"


def test_a_process_group_becomes_a_mesh() -> None:
    text, levels = migrate("group = dist.new_group([0, 1])\nmodel = DDP(model, process_group=group)\n")
    assert "dist.broadcast(tensor.detach(), group=group, group_src=0)" in text
    assert "mesh=DeviceMesh.from_group(group, next(model.parameters()).device.type)" in text
    assert levels["FS121"] == [Level.REVIEW]


def test_a_device_mesh_is_the_mesh() -> None:
    text, _ = migrate("model = DDP(model, device_mesh=mesh)\n")
    assert "dist.broadcast(tensor.detach(), group=mesh.get_group(), group_src=0)" in text
    assert "fully_shard(model, mesh=mesh)" in text


def test_unused_parameters_are_for_a_person_to_look_at() -> None:
    text, levels = migrate("model = DDP(model, find_unused_parameters=flag)\n")
    assert text == BROADCAST + "fully_shard(model)\n"
    assert levels["FS121"] == [Level.REVIEW]


@pytest.mark.parametrize("argument", ["mixed_precision=policy", "param_to_hook_all_reduce=p", "unheard_of=1"])
def test_arguments_that_cannot_be_carried_over_leave_the_wrap_alone(argument: str) -> None:
    body = f"model = DDP(model, {argument})\n"
    text, levels = migrate(body)
    assert text == body
    assert levels["FS120"] == [Level.MANUAL]


def test_running_statistics_are_broadcast_before_every_forward() -> None:
    text, _ = migrate("model = DDP(model)\n", "nn.BatchNorm1d(8)")
    assert "model.register_forward_pre_hook(broadcast_buffers)" in text
    assert " \n" not in text


@pytest.mark.parametrize(
    ("model", "hooked"),
    [
        ("nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8))", True),
        ("nn.Sequential(nn.Linear(6, 8), Net())", True),
        ("nn.BatchNorm1d(8)", True),
        ("nn.Sequential(nn.Linear(6, 8), nn.ReLU())", False),
    ],
)
def test_running_statistics_of_a_model_of_torch_are_seen_in_its_call(model: str, hooked: bool) -> None:
    text, _ = migrate(f"model = DDP({model})\n", "nn.BatchNorm1d(8)")
    assert ("model.register_forward_pre_hook(broadcast_buffers)" in text) is hooked


@pytest.mark.parametrize(
    ("body", "layer"),
    [
        ("model = DDP(model, broadcast_buffers=False)\n", "nn.BatchNorm1d(8)"),
        ("model = nn.SyncBatchNorm.convert_sync_batchnorm(model)\nmodel = DDP(model)\n", "nn.BatchNorm1d(8)"),
        ("model = DDP(model)\n", "nn.LayerNorm(8)"),
    ],
)
def test_no_hook_where_nothing_has_to_be_kept_equal(body: str, layer: str) -> None:
    text, _ = migrate(body, layer)
    assert "hook" not in text
    assert "fully_shard(model)" in text


def test_without_a_device_set_anywhere_it_is_set_before() -> None:
    source = HEAD.format(layer="nn.Linear(8, 8)").replace("torch.cuda.set_device(0)\n", "")
    _, results = analyse_texts({"train.py": source + "model = DDP(model, device_ids=[local_rank])\n"})
    assert "torch.cuda.set_device(local_rank)\nfor tensor in" in results["train.py"]


def test_a_model_on_the_cpu_gets_a_mesh_of_its_own_device() -> None:
    text, _ = migrate('dist.init_process_group("gloo")\nmodel = DDP(model)\n')
    assert "mesh=init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))" in text


def test_keywords_in_a_dictionary_go_with_it() -> None:
    made = "options = {}\nif flag:\n    options['static_graph'] = True\n"
    text, levels = migrate(made + "model = DDP(model, **options)\n")
    assert text.endswith(BROADCAST + "fully_shard(model)\n")
    assert levels["FS121"] == [Level.REVIEW]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("def wrap(net):\n    return DDP(net, broadcast_buffers=False)\n", "    fully_shard(net)\n    return net\n"),
        ("ddp_model = DDP(model)\n", "fully_shard(model)\nddp_model = model\n"),
        ("train(DDP(model))\n", "fully_shard(model)\ntrain(model)\n"),
        ("model = DDP(model) if flag else model\n", "    fully_shard(model)\n"),
    ],
)
def test_wraps_inside_other_statements(body: str, expected: str) -> None:
    text, _ = migrate(body)
    assert text.endswith(expected)


def test_replicate_before_its_torch_version_is_a_mesh_of_ranks_by_one() -> None:
    text, _ = migrate("model = DDP(model)\n", options=Options(ddp="replicate", target_torch=(2, 6)))
    assert '(dist.get_world_size(), 1), mesh_dim_names=("replicate", "shard")' in text


def test_replicate_from_its_torch_version_on() -> None:
    text, _ = migrate("model = DDP(model)\n", options=Options(ddp="replicate", target_torch=(2, 9)))
    assert text == BROADCAST + "replicate(model)\n"


def test_ddp_can_stay() -> None:
    body = "model = DDP(model)\nwith model.no_sync():\n    model(x).backward()\nprint(model.module)\n"
    text, levels = migrate(body, options=Options(ddp="keep"))
    assert text == body
    assert {level for found in levels.values() for level in found} == {Level.OK}


def test_a_subclass_is_for_a_person() -> None:
    body = "class Wrapper(DDP):\n    pass\n\n\nmodel = Wrapper(model)\n"
    text, levels = migrate(body)
    assert text == body
    assert levels["FS605"] == [Level.MANUAL]


def test_a_hook_keeps_the_group_of_its_own_turn() -> None:
    text, _ = migrate("for i, net in enumerate(nets):\n    nets[i] = DDP(net, process_group=groups[i])\n")
    assert "    def broadcast_buffers(module, inputs, group=groups[i]):\n" in text
    assert "dist.broadcast(buffer, group=group, group_src=0)" in text


def test_functions_for_wraps_inside_expressions_have_names_of_their_own() -> None:
    text, _ = migrate(
        "first = lambda net: DDP(net, broadcast_buffers=False)\nsecond = [DDP(net, init_sync=False) for net in nets]\n"
    )
    assert "first = lambda net: shard(net)\n" in text
    assert "second = [shard_2(net) for net in nets]\n" in text


def test_a_model_that_may_hold_sharded_parts_is_for_review() -> None:
    program = """
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def is_wrapped(model):
    return isinstance(model, DDP)


def wrap(model):
    if not is_wrapped(model):
        model = DDP(model)
    return model


class Pair(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.left = DDP(torch.nn.Linear(2, 2))


first = wrap(torch.nn.Linear(2, 2))
second = wrap(Pair())
"""
    analysis, _ = analyse_texts({"train.py": program})
    again = [f for f in analysis.findings if "what an earlier call has sharded" in f.message]
    assert [f.line for f in again] == [12]


def test_other_buffers_of_unseen_models_are_named_beside_sync_batch_norm() -> None:
    text = HEAD.format(layer="nn.Linear(2, 2)").replace("model = Net()", "model = zoo.build()")
    converted = text.replace("import torch\n", "import torch\nimport zoo\n", 1) + (
        "model = nn.SyncBatchNorm.convert_sync_batchnorm(model)\nmodel = DDP(model)\n"
    )
    analysis, results = analyse_texts({"train.py": converted})
    (wrap,) = [f for f in analysis.findings if f.rule == "FS120"]
    assert wrap.level is Level.REVIEW
    assert "no others are broadcast" in wrap.message
    assert "register_forward_pre_hook" not in results["train.py"]
