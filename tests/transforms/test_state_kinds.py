"""Kinds of state dicts that are chosen at run time."""

from __future__ import annotations

from migrating import analyse_texts
from to_fsdp2.transforms.findings import Finding, Level

HEAD = """\
import torch
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardedStateDictConfig, StateDictType


"""


def migrate(body: str) -> tuple[str, list[Finding]]:
    """The text behind the imports, and the findings."""
    analysis, results = analyse_texts({"train.py": HEAD + body})
    return results["train.py"].partition("\n\n\n")[2], analysis.findings


def level_of(findings: list[Finding], rule: str) -> Level:
    return next(finding.level for finding in findings if finding.rule == rule)


def test_a_kind_by_name_is_compared_and_any_other_name_refused() -> None:
    text, findings = migrate(
        "def save(net, args):\n    model = FSDP(net, use_orig_params=True)\n"
        "    with FSDP.state_dict_type(model, StateDictType[args.kind]):\n        return model.state_dict()\n"
    )
    assert text == (
        "def save(net, args):\n    fully_shard(net)\n    model = net\n"
        '    assert args.kind in ("FULL_STATE_DICT", "SHARDED_STATE_DICT"), args.kind\n'
        "    return get_model_state_dict(\n"
        '        model, options=StateDictOptions(full_state_dict=args.kind == "FULL_STATE_DICT")\n    )\n'
    )
    assert level_of(findings, "FS401") is Level.REVIEW


def test_configs_chosen_with_the_kind_are_the_options() -> None:
    text, findings = migrate(
        "def save(net, whole):\n    model = FSDP(net, use_orig_params=True)\n"
        "    kind, config = StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig()\n"
        "    if whole:\n"
        "        kind, config = StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=True)\n"
        "    FSDP.set_state_dict_type(model, kind, config)\n"
        "    return model.state_dict()\n"
    )
    assert 'kind, config = "SHARDED_STATE_DICT", StateDictOptions()\n' in text
    assert 'kind, config = "FULL_STATE_DICT", StateDictOptions(full_state_dict=True, cpu_offload=True)\n' in text
    assert "return get_model_state_dict(model, options=config)\n" in text
    assert level_of(findings, "FS410") is Level.SAFE


def test_a_kind_that_may_be_local_says_what_becomes_of_old_files() -> None:
    _, findings = migrate(
        "def save(net, whole):\n    model = FSDP(net, use_orig_params=True)\n"
        "    kind = StateDictType.FULL_STATE_DICT if whole else StateDictType.LOCAL_STATE_DICT\n"
        "    FSDP.set_state_dict_type(model, kind)\n    return model.state_dict()\n"
    )
    assert level_of(findings, "FS402") is Level.REVIEW
    assert "files that the old program wrote" in next(f.message for f in findings if f.rule == "FS402")


SETTING = """\
class Trainer:
    def __init__(self, net, kind):
        self.model = FSDP(net, use_orig_params=True)
        self.kind = StateDictType[kind]
        FSDP.set_state_dict_type(self.model, self.kind)
"""


def test_a_method_reads_the_kind_where_another_one_set_it() -> None:
    text, findings = migrate(SETTING + "\n    def state(self):\n        return self.model.state_dict()\n")
    assert '        assert self.kind in ("FULL_STATE_DICT", "SHARDED_STATE_DICT"), self.kind\n' in text
    assert 'full_state_dict=self.kind == "FULL_STATE_DICT"' in text
    assert level_of(findings, "FS402") is Level.REVIEW


def test_a_kind_that_is_out_of_reach_is_for_a_person() -> None:
    body = SETTING + "\n\ndef state(trainer: Trainer):\n    return trainer.model.state_dict()\n"
    body += "\n\nstate(Trainer(net, 'FULL_STATE_DICT'))\n"
    text, findings = migrate(body)
    assert text == body
    assert level_of(findings, "FS402") is Level.MANUAL


def test_a_name_that_is_bound_anew_no_longer_tells_the_kind() -> None:
    body = (
        "def save(net, kind, other):\n    model = FSDP(net, use_orig_params=True)\n"
        "    FSDP.set_state_dict_type(model, kind)\n    kind = other\n    return model.state_dict()\n"
    )
    text, findings = migrate(body)
    assert text == body
    assert level_of(findings, "FS402") is Level.MANUAL


def test_configs_from_elsewhere_are_for_a_person() -> None:
    body = (
        "def save(net, kind, config):\n    model = FSDP(net, use_orig_params=True)\n"
        "    FSDP.set_state_dict_type(model, kind, config)\n    return model.state_dict()\n"
    )
    text, findings = migrate(body)
    assert text == body
    assert level_of(findings, "FS410") is Level.MANUAL


def test_a_kind_that_may_be_sharded_is_not_taken_on_one_rank() -> None:
    body = (
        "def save(net, kind):\n    model = FSDP(net, use_orig_params=True)\n"
        "    FSDP.set_state_dict_type(model, kind)\n"
        "    if torch.distributed.get_rank() == 0:\n        torch.save(model.state_dict(), 'model.pt')\n"
    )
    text, findings = migrate(body)
    assert text == body
    assert level_of(findings, "FS402") is Level.MANUAL


def test_models_under_ddp_have_no_kind_of_state_dict() -> None:
    analysis, results = analyse_texts(
        {
            "sharded.py": HEAD + "def main(net, kind):\n    FSDP.set_state_dict_type(build(net), kind)\n",
            "replicated.py": "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\n"
            "def main(net):\n    model = DDP(net, broadcast_buffers=False)\n    return model.module.state_dict()\n",
        }
    )
    finding = next(finding for finding in analysis.findings if finding.rule == "FS402")
    assert finding.level is not Level.MANUAL
    assert "get_model_state_dict(" in results["replicated.py"]


def test_branches_that_set_different_kinds_are_for_a_person() -> None:
    setting = "FSDP.set_state_dict_type(model, StateDictType."
    body = (
        "def save(net, whole):\n    model = FSDP(net, use_orig_params=True)\n"
        f"    if whole:\n        {setting}FULL_STATE_DICT)\n    else:\n        {setting}SHARDED_STATE_DICT)\n"
        "    return model.state_dict()\n"
    )
    text, findings = migrate(body)
    assert text == body
    assert level_of(findings, "FS402") is Level.MANUAL


def test_each_branch_has_the_kind_that_it_sets() -> None:
    setting = "FSDP.set_state_dict_type(model, StateDictType."
    text, _ = migrate(
        "def save(net, whole):\n    model = FSDP(net, use_orig_params=True)\n"
        f"    {setting}SHARDED_STATE_DICT)\n    shards = model.state_dict()\n"
        f"    {setting}FULL_STATE_DICT)\n    if whole:\n        return model.state_dict()\n    return shards\n"
    )
    assert "shards = get_model_state_dict(model)\n" in text
    assert "return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))\n" in text


def test_configs_from_elsewhere_are_named_where_the_kind_is_set() -> None:
    text, findings = migrate(
        "def save(net, kind, registry, settings):\n    model = FSDP(net, use_orig_params=True)\n"
        "    config = registry.build(settings)\n"
        "    FSDP.set_state_dict_type(model, kind, config)\n    return model.state_dict()\n"
    )
    assert "set_state_dict_type(model, kind, config)" in text
    finding = next(finding for finding in findings if finding.rule == "FS410")
    assert finding.level is Level.MANUAL and "config may hold what no call in these files makes" in finding.message


def test_a_config_handed_to_a_registry_has_a_function_for_its_way_out() -> None:
    _, findings = migrate("def register(registry):\n    registry.register_module(module=FullStateDictConfig)\n")
    finding = next(finding for finding in findings if finding.rule == "FS409" and finding.level is Level.MANUAL)
    assert "def FullStateDictConfig(offload_to_cpu=False, rank0_only=False)" in finding.advice


def test_a_test_that_tells_configs_apart_stays() -> None:
    body = (
        "def is_full(net, config):\n    model = FSDP(net, use_orig_params=True)\n"
        "    if isinstance(config, FullStateDictConfig):\n        model.eval()\n    return model\n"
    )
    text, findings = migrate(body)
    assert text == body
    finding = next(finding for finding in findings if finding.rule == "FS409")
    assert finding.level is Level.MANUAL and "as all other configs will" in finding.message


def test_what_to_call_where_the_kind_is_not_known_is_said_of_the_state_that_is_meant() -> None:
    _, findings = migrate(
        "def save(net, optimizer, kind):\n    model = FSDP(net, use_orig_params=True)\n"
        "    FSDP.set_state_dict_type(model, *kind())\n"
        "    return model.state_dict(), FSDP.optim_state_dict(model, optimizer)\n"
    )
    advice = {finding.rule: finding.advice for finding in findings if finding.level is Level.MANUAL}
    assert advice["FS402"].startswith("Call get_model_state_dict(model, options=")
    assert advice["FS406"].startswith("Call get_optimizer_state_dict(model, optimizer, options=")
