"""Classes that derive from a wrapper: what they wrap stays, and holds nothing else."""

from __future__ import annotations

from migrating import analyse_texts
from to_fsdp2.transforms.findings import Finding, Level

SUBCLASS_OF_DDP = """\
from torch.nn.parallel import DistributedDataParallel as DDP


class Stepping(DDP):
    def train_step(self, batch):
        with self.no_sync():
            return self(batch)
"""
BUILT_UNDER_DDP = """\
import torch
from subclass import Stepping


def main(net):
    model = Stepping(net, find_unused_parameters=True)
    with model.no_sync():
        model(3).backward()
    torch.save(model.module.state_dict(), "model.pt")
"""
SUBCLASS_OF_FSDP1 = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Scaled(FSDP):
    def forward(self, x):
        with self.no_sync():
            return super().forward(x) / 2
"""
BUILT_UNDER_FSDP1 = """\
import torch
from subclass import Scaled


def main(net):
    model = Scaled(net, use_orig_params=True)
    torch.save(model.state_dict(), "model.pt")
"""
ELSEWHERE = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(net):
    model = FSDP(net, use_orig_params=True)
    assert isinstance(model, FSDP)
    return model.state_dict()
"""


def at_level(findings: list[Finding], level: Level, file: str = "") -> list[str]:
    return [finding.rule for finding in findings if finding.level is level and finding.file.startswith(file)]


def test_what_a_subclass_of_ddp_wraps_stays_and_its_uses_are_right() -> None:
    texts = {"subclass.py": SUBCLASS_OF_DDP, "train.py": BUILT_UNDER_DDP}
    analysis, results = analyse_texts(texts)
    assert results == texts
    assert at_level(analysis.findings, Level.MANUAL) == ["FS600", "FS605", "FS120"]
    assert {"FS301", "FS402", "FS601", "FS121"} <= set(at_level(analysis.findings, Level.OK))


def test_a_subclass_of_ddp_does_not_hold_models_of_fsdp1() -> None:
    texts = {"subclass.py": SUBCLASS_OF_DDP, "train.py": BUILT_UNDER_DDP, "other.py": ELSEWHERE}
    analysis, results = analyse_texts(texts)
    assert {path for path in texts if results[path] != texts[path]} == {"other.py"}
    assert not at_level(analysis.findings, Level.MANUAL, "other.py")


def test_a_wrap_of_ddp_beside_a_subclass_is_still_held_with_it_where_they_meet() -> None:
    texts = {
        "subclass.py": SUBCLASS_OF_DDP,
        "train.py": "from subclass import DDP, Stepping\n\n\ndef main(net, steps):\n"
        "    model = Stepping(net) if steps else DDP(net)\n    with model.no_sync():\n        model(3).backward()\n",
    }
    analysis, results = analyse_texts(texts)
    assert results == texts
    assert "FS301" in at_level(analysis.findings, Level.MANUAL, "train.py")


def test_a_subclass_of_fsdp1_keeps_its_models_and_no_others() -> None:
    texts = {"subclass.py": SUBCLASS_OF_FSDP1, "train.py": BUILT_UNDER_FSDP1, "other.py": ELSEWHERE}
    analysis, results = analyse_texts(texts)
    assert {path for path in texts if results[path] != texts[path]} == {"other.py"}
    built = next(finding for finding in analysis.findings if finding.rule == "FS101" and finding.file == "train.py")
    assert built.level is Level.MANUAL
    assert "Scaled is a subclass" in built.message
    assert "subclass.py:4" in built.advice
    blocked = [finding for finding in analysis.findings if finding.rule == "FS301"]
    assert [finding.blocked_by for finding in blocked] == ["subclass.py:4"]


def test_the_way_out_names_what_is_special_about_a_subclass() -> None:
    subclass = """\
from registry import WRAPPERS
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


@WRAPPERS.register()
class Stepping(FSDP):
    def __init__(self, module, policy, precision=None, **rest):
        ignored = self._ignored(module)
        super().__init__(
            module, auto_wrap_policy=policy, mixed_precision=precision, ignored_states=ignored, use_orig_params=True, **rest
        )

    def _ignored(self, module):
        return [p for p in module.parameters() if p.dim() == 0]

    def train_step(self, batch):
        return self(self.module.train_step(batch))
"""
    analysis, _ = analyse_texts({"subclass.py": subclass})
    finding = next(finding for finding in analysis.findings if finding.rule == "FS605")
    assert "until train_step has another place" in finding.message
    for part in (
        "fully_shard on each of reversed(list(module.modules())[1:]) that policy is true of",
        "mixed_precision becomes mp_policy",
        "use_orig_params goes",
        "ignored_states becomes ignored_params",
        "what **rest brings likewise",
        "_ignored, which __init__ calls",
        "(self.module.train_step is super().train_step)",
        "@WRAPPERS.register() may stay",
    ):
        assert part in finding.advice


def test_the_way_out_tells_what_serves_callers_from_what_serves_fsdp1() -> None:
    subclass = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Loaded(FSDP):
    def __init__(self, name):
        model = load(name)
        super().__init__(model, device_id=0, sync_module_states=True, cpu_offload=None)
        self.name = name

    def __call__(self, batch):
        return super().__call__(**batch).loss

    def forward(self, x):
        return super().forward(x) / 2

    def state_dict(self):
        return {}

    if OLD:

        def _auto_wrap(self, policy, arguments):
            pass

    @classmethod
    def from_config(cls, config):
        return cls(config.name)
"""
    analysis, _ = analyse_texts({"subclass.py": subclass})
    finding = next(finding for finding in analysis.findings if finding.rule == "FS605")
    assert "until __call__, forward have another place" in finding.message
    for part in (
        "on the units of model and last on model itself, and returns model",
        "sync_module_states becomes a broadcast",
        "What __init__ keeps on self is kept on model",
        "Functions that call it take the place of from_config",
        "super().forward the model's own",
        "state_dict of the class goes",
        "_auto_wrap: gone",
    ):
        assert part in finding.advice
    assert "offload_policy" not in finding.advice


def test_tests_ask_for_the_wrapper_as_well_where_models_keep_it() -> None:
    _, results = analyse_texts({"subclass.py": SUBCLASS_OF_FSDP1, "other.py": ELSEWHERE})
    assert "isinstance(model, (FSDP, FSDPModule))" in results["other.py"]


def test_tests_for_both_wrappers_keep_the_one_that_stays() -> None:
    both = ELSEWHERE.replace("isinstance(model, FSDP)", "isinstance(model, (FSDP, DDP))")
    texts = {"subclass.py": SUBCLASS_OF_DDP, "other.py": "from subclass import DDP\n" + both}
    _, results = analyse_texts(texts)
    assert "isinstance(model, (FSDPModule, DDP))" in results["other.py"]


def test_classes_built_by_name_keep_the_settings_of_fsdp1() -> None:
    texts = {
        "subclass.py": SUBCLASS_OF_FSDP1 + "\n\nREGISTRY = {'scaled': Scaled}\n",
        "train.py": BUILT_UNDER_DDP.replace("subclass", "stepping"),
        "stepping.py": SUBCLASS_OF_DDP,
        "state.py": "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
        "def state(model, optimizer):\n    return FSDP.optim_state_dict(model, optimizer)\n",
    }
    analysis, results = analyse_texts(texts)
    assert results == texts
    finding = next(finding for finding in analysis.findings if finding.file == "state.py" and finding.rule == "FS406")
    assert finding.level is Level.MANUAL
    assert finding.blocked_by == "subclass.py:4"


def test_an_attribute_of_the_same_name_on_an_own_object_is_no_use_of_fsdp1() -> None:
    code = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Strategy:
    def __init__(self, kind):
        self.state_dict_type = "full" if kind else "sharded"

    def is_full(self):
        return self.state_dict_type == "full"
"""
    analysis, _ = analyse_texts({"strategy.py": code})
    assert [finding.rule for finding in analysis.findings] == ["FS600"]
