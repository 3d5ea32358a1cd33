"""Every argument of the FSDP1 constructor has an outcome, whatever its value."""

from __future__ import annotations

import ast
import inspect

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.engine import Options
from to_fsdp2.transforms.findings import Level
from to_fsdp2.transforms.sharding.constructor import PARAMETERS

IMPORTS = """\
import functools
import torch
import torch.distributed as dist
from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, always_wrap_policy, size_based_auto_wrap_policy


def shard(model, args):
"""


def migrate(arguments: str, **options: object) -> tuple[str, dict[str, Level]]:
    """The body of the function that wraps with these arguments, and the level of each argument's finding."""
    text = f"{IMPORTS}    torch.cuda.set_device(args.rank)\n    model = FSDP(model, {arguments})\n    return model\n"
    analysis, results = analyse_texts({"train.py": text}, Options(**options))  # pyright: ignore[reportArgumentType]
    tree = ast.parse(results["train.py"])
    function = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "shard")
    body = "\n".join(ast.unparse(statement) for statement in function.body[1:-1])
    levels = {
        f.symbol.partition("(")[2].rstrip("=)"): f.level for f in analysis.findings if "Parallel(" in f.symbol
    }
    return body, levels


VALUES = [
    ("process_group=None", "fully_shard(model)", Level.SAFE),
    (
        "process_group=args.group",
        "fully_shard(model, mesh=DeviceMesh.from_group(args.group, 'cuda'))",
        Level.REVIEW,
    ),
    ("sharding_strategy=None", "fully_shard(model)", Level.SAFE),
    ("sharding_strategy=ShardingStrategy.FULL_SHARD", "fully_shard(model)", Level.SAFE),
    (
        "sharding_strategy=ShardingStrategy.SHARD_GRAD_OP",
        "fully_shard(model, reshard_after_forward=False)",
        Level.SAFE,
    ),
    (
        "sharding_strategy=ShardingStrategy.NO_SHARD",
        "mesh = init_device_mesh('cuda', (dist.get_world_size(), 1), mesh_dim_names=('replicate', 'shard'))\n"
        "fully_shard(model, mesh=mesh)",
        Level.SAFE,
    ),
    (
        "sharding_strategy=ShardingStrategy._HYBRID_SHARD_ZERO2, device_mesh=args.mesh",
        "fully_shard(model, mesh=args.mesh, reshard_after_forward=False)",
        Level.SAFE,
    ),
    ("cpu_offload=None", "fully_shard(model)", Level.SAFE),
    ("cpu_offload=CPUOffload()", "fully_shard(model)", Level.SAFE),
    (
        "cpu_offload=CPUOffload(offload_params=True)",
        "offload_policy = CPUOffloadPolicy()\nfully_shard(model, offload_policy=offload_policy)",
        Level.REVIEW,  # no process group is in sight, and it has to reduce on the CPU
    ),
    ("auto_wrap_policy=None", "fully_shard(model)", Level.SAFE),
    (
        "auto_wrap_policy=ModuleWrapPolicy([torch.nn.Linear, torch.nn.Conv2d])",
        "for module in reversed(list(model.modules())):\n"
        "    if module is not model and isinstance(module, (torch.nn.Linear, torch.nn.Conv2d)):\n"
        "        fully_shard(module)\nfully_shard(model)",
        Level.SAFE,
    ),
    ("backward_prefetch=BackwardPrefetch.BACKWARD_PRE", "fully_shard(model)", Level.SAFE),
    ("backward_prefetch=BackwardPrefetch.BACKWARD_POST", "fully_shard(model)", Level.REVIEW),
    ("backward_prefetch=None", "fully_shard(model)", Level.REVIEW),
    ("forward_prefetch=False", "fully_shard(model)", Level.SAFE),
    ("forward_prefetch=args.prefetch", "fully_shard(model)", Level.REVIEW),
    ("mixed_precision=None", "fully_shard(model)", Level.SAFE),
    (
        "mixed_precision=MixedPrecision(torch.float16, torch.float32)",
        "fully_shard(model, mp_policy=MixedPrecisionPolicy(torch.float16, torch.float32))",
        Level.SAFE,
    ),
    (
        "mixed_precision=MixedPrecision(param_dtype=torch.float16, buffer_dtype=torch.float16)",
        "for buffer in model.buffers():\n    if buffer.is_floating_point():\n"
        "        buffer.data = buffer.to(torch.float16)\n"
        "fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.float16))",
        Level.REVIEW,
    ),
    ("ignored_modules=None", "fully_shard(model)", Level.REVIEW),
    ("ignored_states=None", "fully_shard(model)", Level.REVIEW),
    ("param_init_fn=None", "fully_shard(model)", Level.REVIEW),
    ("device_id=torch.cuda.current_device()", "fully_shard(model)", Level.SAFE),
    (
        "device_id=torch.device('cpu')",
        "mesh = init_device_mesh('cpu', (dist.get_world_size(),))\nfully_shard(model, mesh=mesh)",
        Level.SAFE,
    ),
    ("sync_module_states=False", "fully_shard(model)", Level.SAFE),
    (
        "sync_module_states=True",
        "for tensor in [*model.parameters(), *model.buffers()]:\n    dist.broadcast(tensor.detach(), src=0)\n"
        "fully_shard(model)",
        Level.SAFE,
    ),
    ("limit_all_gathers=True", "fully_shard(model)", Level.SAFE),
    ("limit_all_gathers=False", "fully_shard(model)", Level.REVIEW),
    ("use_orig_params=False", "fully_shard(model)", Level.SAFE),
    ("device_mesh=None", "fully_shard(model)", Level.SAFE),
    ("device_mesh=args.mesh", "fully_shard(model, mesh=args.mesh)", Level.REVIEW),
]


@pytest.mark.parametrize(("argument", "expected", "level"), VALUES, ids=[value[0] for value in VALUES])
def test_value(argument: str, expected: str, level: Level) -> None:
    body, levels = migrate(argument)
    assert body == expected
    assert levels[argument.partition("=")[0]] is level


def test_every_parameter_of_the_installed_torch_is_known() -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    declared = inspect.signature(fsdp.FullyShardedDataParallel.__init__).parameters
    assert tuple(declared)[1:] == PARAMETERS


def test_positional_arguments_count_like_named_ones() -> None:
    body, _ = migrate("None, ShardingStrategy.SHARD_GRAD_OP, None, None")
    assert body == "fully_shard(model, reshard_after_forward=False)"


def test_a_pair_of_groups_changes_places() -> None:
    body, levels = migrate(
        "process_group=(args.shard, args.replicate), sharding_strategy=ShardingStrategy.HYBRID_SHARD"
    )
    assert "from_group([args.replicate, args.shard]" in body
    assert "mesh_dim_names=('replicate', 'shard')" in body
    assert levels["process_group"] is Level.REVIEW


def test_a_pair_of_groups_in_a_variable_becomes_a_mesh() -> None:
    text = f"{IMPORTS}    groups = (args.shard, args.replicate)\n    return FSDP(model, process_group=groups)\n"
    analysis, results = analyse_texts({"train.py": text})
    assert "mesh = DeviceMesh.from_group(\n        [args.replicate, args.shard]," in results["train.py"]
    assert "fully_shard(model, mesh=mesh)" in results["train.py"]
    assert any(f.rule == "FS230" and f.level is Level.REVIEW for f in analysis.findings)


def test_a_policy_that_answers_with_arguments_is_asked_about_what_is_not_ignored() -> None:
    text = f"{IMPORTS}    from torch.distributed.fsdp.wrap import CustomPolicy\n"
    text += "    return FSDP(model, auto_wrap_policy=CustomPolicy(args.choose), ignored_modules=args.ignored)\n"
    _, results = analyse_texts({"train.py": text})
    asked = "(module, args.choose(module))\n        for module in model.modules()\n        if ignored_params.isdisjoint("
    assert asked in results["train.py"]
    assert "fully_shard(module, **(arguments | answer if isinstance(answer, dict) else arguments))" in results["train.py"]


def test_names_of_torch_that_another_module_has_taken_are_written_in_full() -> None:
    text = IMPORTS.replace("import torch.distributed as dist", "from helpers import dist")
    text += "    return FSDP(model, sync_module_states=True)\n"
    _, results = analyse_texts({"train.py": text})
    assert "torch.distributed.broadcast(" in results["train.py"] and " dist.broadcast(" not in results["train.py"]


def test_imports_of_a_branch_are_not_the_place_for_what_is_used_outside() -> None:
    text = f"{IMPORTS}    if args.policy:\n        from torch.distributed.fsdp.wrap import CustomPolicy  # policies\n\n"
    text += "        policy = CustomPolicy(args.policy)\n    else:\n        policy = None\n"
    text += "    return FSDP(model, process_group=args.group, auto_wrap_policy=policy)\n"
    _, results = analyse_texts({"train.py": text})
    head = results["train.py"].partition("def ")[0]
    assert "import DeviceMesh" in head and "fully_shard" in head


def test_a_mesh_in_a_dictionary_that_is_filled_under_conditions() -> None:
    head = f"{IMPORTS}    kwargs = {{}}\n    if args.mesh:\n"
    text = f'{head}        kwargs["device_mesh"] = args.mesh\n    return FSDP(model, process_group=args.group, **kwargs)\n'
    analysis, results = analyse_texts({"train.py": text})
    assert 'kwargs["mesh"] = args.mesh' in results["train.py"]
    group = 'DeviceMesh.from_group(args.group, "cuda") if args.group is not None else None'
    assert f'kwargs.setdefault("mesh", {group})\n    fully_shard(model, **kwargs)' in results["train.py"]
    assert any("where process_group is given as well, FSDP1 raised" in f.message for f in analysis.findings)
    assert all(f.level is not Level.MANUAL for f in analysis.findings)
    other = text.replace("device_mesh", "mixed_precision")
    assert analyse_texts({"train.py": other})[1]["train.py"] == other


@pytest.mark.parametrize("name", ["ignored_modules", "ignored_states", "ignored_parameters"])
def test_ignored_parameters_need_torch_2_7(name: str) -> None:
    body, levels = migrate(f"{name}=[args.ignored]")
    assert "FSDP(" in body and levels[name] is Level.MANUAL
    body, levels = migrate(f"{name}=args.ignored")
    assert "{'ignored_params': ignored_params} if ignored_params else {}" in body and levels[name] is Level.REVIEW
    body, levels = migrate(f"{name}=args.ignored", target_torch=(2, 7))
    assert "fully_shard(model, ignored_params=ignored_params)" in body and levels[name] is Level.REVIEW


def test_replication_uses_replicate_from_torch_2_9() -> None:
    body, _ = migrate("sharding_strategy=ShardingStrategy.NO_SHARD", target_torch=(2, 9))
    assert body == "replicate(model)"


def test_precision_that_may_be_missing_gets_a_default() -> None:
    body, _ = migrate("mixed_precision=MixedPrecision(torch.float16) if args.half else None")
    assert "MixedPrecisionPolicy(torch.float16) if args.half else MixedPrecisionPolicy()" in body


def test_an_argument_that_fsdp1_does_not_have_holds_the_wrap_back() -> None:
    body, levels = migrate("reshard=True")
    assert "FSDP(model" in body
    assert Level.MANUAL in levels.values()


def test_keywords_from_outside_go_to_fully_shard_which_refuses_those_of_fsdp1() -> None:
    body, levels = migrate("**args.options")
    assert body == "fully_shard(model, **args.options)"
    assert levels["**"] is Level.REVIEW


STRATEGY_MENTIONS = [
    ("args.strategy is ShardingStrategy.NO_SHARD", "args.strategy == 'NO_SHARD'"),
    ("args.strategy is not ShardingStrategy.NO_SHARD", "args.strategy != 'NO_SHARD'"),
    (
        "args.strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.NO_SHARD)",
        "args.strategy in ('FULL_SHARD', 'NO_SHARD')",
    ),
    ("ShardingStrategy[args.name]", "args.name"),
    ("getattr(ShardingStrategy, args.name)", "args.name"),
    ("ShardingStrategy.HYBRID_SHARD.name", "'HYBRID_SHARD'"),
]


@pytest.mark.parametrize(("before", "after"), STRATEGY_MENTIONS)
def test_strategies_are_strings_everywhere(before: str, after: str) -> None:
    text = f"{IMPORTS}    model = FSDP(model)\n    print({before})\n    return model\n"
    _, results = analyse_texts({"train.py": text})
    assert f"print({after})" in ast.unparse(ast.parse(results["train.py"]))


def test_the_name_of_a_strategy_in_a_variable_stays_variable() -> None:
    text = (
        f"{IMPORTS}    kind = ShardingStrategy.FULL_SHARD if args.full else ShardingStrategy.SHARD_GRAD_OP\n"
    )
    text += "    print(kind.name)\n    model = FSDP(model, sharding_strategy=kind)\n    return model\n"
    _, results = analyse_texts({"train.py": text})
    assert "print(kind)" in results["train.py"]


def test_a_policy_for_activation_checkpointing_stays() -> None:
    text = (
        f"{IMPORTS}    model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({{torch.nn.Linear}}))\n"
        "    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing\n"
        "    policy = ModuleWrapPolicy({torch.nn.Linear})\n"
        "    apply_activation_checkpointing(model, auto_wrap_policy=policy)\n    return model\n"
    )
    _, results = analyse_texts({"train.py": text})
    assert "policy = ModuleWrapPolicy({torch.nn.Linear})" in results["train.py"]
    assert "isinstance(module, torch.nn.Linear)" in results["train.py"]


OUTSIDE = """
import functools

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, size_based_auto_wrap_policy


def shard(model, policy):
    wrap_policy = ModuleWrapPolicy(policy) if isinstance(policy, set) else policy
    return FSDP(model, auto_wrap_policy=wrap_policy)


def by_size(least=100):
    return functools.partial(size_based_auto_wrap_policy, min_num_params=least)
"""


def test_policy_that_may_be_a_function_is_asked_as_one() -> None:
    analysis, results = analyse_texts({"train.py": OUTSIDE})
    assert (
        "        if module is not model and (\n"
        "            wrap_policy(module=module, recurse=False, nonwrapped_numel=0)\n"
        "            if callable(wrap_policy)\n"
        "            else isinstance(module, wrap_policy or ())\n"
        "        ):\n"
        "            fully_shard(module)\n"
    ) in results["train.py"]
    (finding,) = [f for f in analysis.findings if f.rule == "FS102"]
    assert finding.level is Level.REVIEW
    assert "a function is asked" in finding.message


def test_size_policy_that_no_wrap_takes_stays() -> None:
    analysis, results = analyse_texts({"train.py": OUTSIDE})
    assert "functools.partial(size_based_auto_wrap_policy, min_num_params=least)" in results["train.py"]
    (finding,) = [f for f in analysis.findings if f.rule == "FS105"]
    assert finding.level is Level.MANUAL
    assert {f.rule for f in analysis.findings if f.blocked_by} <= {"FS600"}


def test_keywords_of_fsdp1_that_the_repository_writes_are_not_handed_on() -> None:
    text = (
        f"{IMPORTS}    kwargs = dict(mixed_precision=args.precision)\n    kwargs.update(args.options)\n"
        "    return FSDP(model, **kwargs)\n"
    )
    analysis, results = analyse_texts({"train.py": text})
    assert results["train.py"] == text
    assert any(f.rule == "FS112" and f.level is Level.MANUAL for f in analysis.findings)


def test_the_broadcast_leaves_out_what_is_ignored() -> None:
    body, _ = migrate("ignored_states=args.ignored, sync_module_states=True", target_torch=(2, 7))
    broadcast = "if tensor not in ignored_params:\n        dist.broadcast(tensor.detach(), src=0)"
    assert body.index("ignored_params = ") < body.index(broadcast)


@pytest.mark.parametrize(("group", "level"), [("args.group", Level.REVIEW), ("(args.shard, args.replicate)", Level.SAFE)])
def test_a_broadcast_to_more_ranks_than_the_group_is_named(group: str, level: Level) -> None:
    _, levels = migrate(f"sync_module_states=True, process_group={group}")
    assert levels["sync_module_states"] is level


def test_no_shard_that_is_chosen_at_run_time_replicates_where_nothing_gives_a_mesh() -> None:
    chosen = "sharding_strategy=ShardingStrategy.NO_SHARD if args.whole else ShardingStrategy.FULL_SHARD"
    mesh = "init_device_mesh('cuda', (dist.get_world_size(), 1), mesh_dim_names=('replicate', 'shard'))"
    body, _ = migrate(chosen)
    assert f"== 'NO_SHARD':\n    mesh = {mesh}\nelse:\n    mesh = None\n" in body
    body, levels = migrate(f"{chosen}, device_mesh=args.mesh")
    assert "mesh = args.mesh\nif mesh is None:\n    if sharding_strategy in (" in body
    assert f"    elif sharding_strategy == 'NO_SHARD':\n        mesh = {mesh}\n" in body
    assert levels["sharding_strategy"] is Level.REVIEW


def test_a_mesh_of_the_strategy_gives_way_to_one_in_a_dictionary() -> None:
    text = f"{IMPORTS}    kwargs = {{}}\n    if args.mesh:\n        kwargs[\"device_mesh\"] = args.mesh\n"
    text += "    strategy = ShardingStrategy.NO_SHARD if args.whole else ShardingStrategy.FULL_SHARD\n"
    text += "    return FSDP(model, sharding_strategy=strategy, **kwargs)\n"
    analysis, results = analyse_texts({"train.py": text})
    assert not any("process_group" in f.message for f in analysis.findings)
    assert '    if "mesh" not in kwargs and strategy == "NO_SHARD":\n        mesh = ' in results["train.py"]
    assert '    kwargs.setdefault("mesh", mesh)\n' in results["train.py"]


def test_a_group_and_a_mesh_of_which_one_is_none_are_left_to_a_person() -> None:
    text = f"{IMPORTS}    return FSDP(model, process_group=args.group, device_mesh=args.mesh)\n"
    analysis, results = analyse_texts({"train.py": text})
    assert results["train.py"] == text
    assert any("FSDP1 takes one of the two" in f.message for f in analysis.findings)


def test_no_shard_over_a_mesh_of_its_own_is_for_review() -> None:
    body, levels = migrate("sharding_strategy=ShardingStrategy.NO_SHARD, device_mesh=args.mesh")
    assert body == "fully_shard(model, mesh=args.mesh)" and levels["sharding_strategy"] is Level.REVIEW


def test_a_shape_that_is_computed_gets_a_name_beside_the_names_of_its_dimensions() -> None:
    text = f"{IMPORTS}    from torch.distributed.device_mesh import init_device_mesh\n    mesh = init_device_mesh(\n"
    text += '        "cuda",\n        tuple(int(x) for x in args.mesh),\n    )\n    return FSDP(model, device_mesh=mesh)\n'
    _, results = analyse_texts({"train.py": text})
    assert (
        "    mesh_shape = tuple(int(x) for x in args.mesh)\n    mesh = init_device_mesh(\n"
        '        "cuda",\n        mesh_shape,\n        mesh_dim_names=("replicate", "shard")[-len(mesh_shape) :],\n    )\n'
    ) in results["train.py"]


def test_where_a_mesh_may_be_given_every_strategy_stays_an_option() -> None:
    body, _ = migrate("sharding_strategy=args.strategy, device_mesh=args.mesh or None")
    strategies = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")
    assert all(f"'{strategy}'" in body for strategy in strategies)
    assert "elif args.strategy == 'NO_SHARD':\n        mesh = init_device_mesh(" in body


def test_joined_policies_that_are_not_named_have_a_way_out() -> None:
    code = """\
import functools

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import _or_policy


def main(net, policies):
    chosen = functools.partial(_or_policy, policies=policies())
    FSDP(net, auto_wrap_policy=chosen)
"""
    analysis, results = analyse_texts({"train.py": code})
    assert results["train.py"] == code
    found = next(finding for finding in analysis.findings if finding.rule == "FS104" and finding.level is Level.MANUAL)
    assert "not named here" in found.message
    assert "policies=[first, second]" in found.advice


@pytest.mark.parametrize(
    ("choice", "reshards"),
    [
        ("ShardingStrategy.FULL_SHARD if args.free else ShardingStrategy.SHARD_GRAD_OP", "args.free"),
        ("ShardingStrategy.SHARD_GRAD_OP if args.keep else ShardingStrategy.FULL_SHARD", "not args.keep"),
        ("ShardingStrategy.SHARD_GRAD_OP if args.n > 1 else ShardingStrategy.FULL_SHARD", "not args.n > 1"),
    ],
)
def test_a_choice_of_two_strategies_says_whether_units_are_resharded(choice: str, reshards: str) -> None:
    body, levels = migrate(f"auto_wrap_policy=ModuleWrapPolicy({{torch.nn.Linear}}), sharding_strategy={choice}")
    assert f"reshard_after_forward={reshards})" in body or f"reshard_after_forward = {reshards}\n" in body
    assert levels["sharding_strategy"] is Level.SAFE


def test_strategies_that_are_all_known_are_offered_alone() -> None:
    chosen = "ShardingStrategy.NO_SHARD if args.whole else ShardingStrategy.FULL_SHARD"
    body, _ = migrate(f"auto_wrap_policy=ModuleWrapPolicy({{torch.nn.Linear}}), sharding_strategy={chosen}")
    assert "{'FULL_SHARD': True, 'NO_SHARD': False}" in body
