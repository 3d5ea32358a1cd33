"""Models that stay under DDP beside those that are sharded: what serves both, and what is said of them."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.engine import Options
from to_fsdp2.transforms.findings import Level

HEAD = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def is_ddp(model):
    return isinstance(model, DDP)


def wrap(model, large):
    if large:
        return FSDP(model)
    return DDP(model)


model = wrap(torch.nn.Linear(4, 4), True)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
"""


def migrated(body: str, options: Options | None = None) -> str:
    """The lines of the program behind its head, once it is migrated; a second run has nothing left to do."""
    _, results = analyse_texts({"train.py": HEAD + body}, options)
    text = results["train.py"]
    assert "fully_shard(model)" in text and "return DDP(model)" in text
    assert analyse_texts({"train.py": text}, options)[1]["train.py"] == text
    return text.partition("lr=0.1)\n")[2]


def test_module_is_taken_off_where_there_is_one() -> None:
    assert migrated("print(model.module.in_features)\n") == 'print(getattr(model, "module", model).in_features)\n'


@pytest.mark.parametrize("test", ["is_ddp(model)", "isinstance(model, DDP)", 'hasattr(model, "module")'])
def test_a_choice_that_unwraps_ddp_stays(test: str) -> None:
    body = f"raw = model.module if {test} else model\n"
    assert migrated(body) == body


def test_both_wrappers_are_taken_off() -> None:
    body = "def unwrap(m):\n    return m.module if isinstance(m, (FSDP, DDP)) else m\n\n\nunwrap(model).eval()\n"
    assert migrated(body) == body.replace("(FSDP, DDP)", "DDP")


def test_a_branch_that_does_more_than_unwrap_is_for_both() -> None:
    body = "def run(m):\n    if isinstance(m, (FSDP, DDP)):\n        with m.no_sync():\n            m.module.eval()\n"
    text = migrated(body + "\n\nrun(model)\n")
    assert "isinstance(m, (FSDPModule, DDP))" in text
    assert 'with no_gradient_sync(m):\n            getattr(m, "module", m).eval()' in text


@pytest.mark.parametrize("classes", ["isinstance(m, (FSDP, DDP))", "type(m) in (FSDP, DDP)"])
def test_an_answer_about_both_names_both(classes: str) -> None:
    text = migrated(f"def is_wrapped(m):\n    return {classes}\n")
    assert "FSDPModule" in text and "DDP" in text


def test_no_sync_serves_both() -> None:
    _, results = analyse_texts({"train.py": HEAD + "with model.no_sync():\n    model(x).sum().backward()\n"})
    text = results["train.py"]
    assert "    if not isinstance(model, FSDPModule):\n        with model.no_sync():\n            yield\n        return\n" in text
    assert "with no_gradient_sync(model):\n    model(x).sum().backward()\n" in text


def test_a_branch_for_fsdp1_is_for_sharded_models_alone() -> None:
    body = "if {test}:\n    with model.no_sync():\n        model(x).sum().backward()\n"
    for test in ("isinstance(model, FSDP)", "not is_ddp(model)"):
        text = migrated(body.format(test=test))
        assert "    model.set_requires_gradient_sync(False)\n    model(x).sum().backward()\n" in text


def test_questions_for_no_sync_are_answered_for_both() -> None:
    text = migrated('if hasattr(model, "no_sync"):\n    model.eval()\n')
    assert text.startswith('if isinstance(model, FSDPModule) or hasattr(model, "no_sync"):\n')


def test_the_flag_of_ddp_stays() -> None:
    body = "for x in data:\n    model.require_backward_grad_sync = x is data[-1]\n    model(x).sum().backward()\n"
    assert migrated(body) == body


def test_state_is_gathered_or_taken_from_ddp() -> None:
    text = migrated('if dist.get_rank() == 0:\n    torch.save([model.state_dict(), optimizer.state_dict()], "a.pt")\n')
    assert "if isinstance(model, DDP):\n    model_state_dict = model.state_dict()\n" in text
    assert "    optimizer_state_dict = optimizer.state_dict()\n" in text
    assert text.endswith('if dist.get_rank() == 0:\n    torch.save([model_state_dict, optimizer_state_dict], "a.pt")\n')


def test_state_of_the_module_inside_needs_no_choice() -> None:
    text = migrated("state = model.module.state_dict()\n")
    assert "isinstance" not in text and 'getattr(model, "module", model)' in text


def test_state_in_an_expression_is_chosen_there() -> None:
    text = migrated("total = sum(t.numel() for t in model.state_dict().values())\n")
    assert "if not isinstance(model, DDP) else model.state_dict()).values()" in text


def test_files_of_ddp_are_loaded_by_ddp() -> None:
    text = migrated('state = torch.load("a.pt")\nmodel.load_state_dict(state["m"])\noptimizer.load_state_dict(state["o"])\n')
    assert 'if isinstance(model, DDP):\n    model.load_state_dict(state["m"])\nelse:\n    set_model_state_dict(' in text
    assert 'if isinstance(model, DDP):\n    optimizer.load_state_dict(state["o"])\nelse:\n    for state_2 in state["o"]' in text


def test_a_load_whose_result_is_used_is_chosen_in_place() -> None:
    text = migrated('missing = model.load_state_dict(torch.load("a.pt")).missing_keys\n')
    assert 'missing = (model.load_state_dict(torch.load("a.pt")) if isinstance(model, DDP) else set_model_state_dict(' in text


APART = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def is_ddp(model):
    return isinstance(model, DDP)


class Saver:
    def __init__(self, optimizer):
        self.optimizer = optimizer

    def save(self):
        torch.save(self.optimizer.state_dict(), "optimizer.pt")

    def load(self):
        self.optimizer.load_state_dict(torch.load("optimizer.pt"))


def main(large):
    net = torch.nn.Linear(4, 4)
    net = FSDP(net) if large else DDP(net)
    saver = Saver(torch.optim.AdamW(net.parameters()))
    saver.{method}()
"""


@pytest.mark.parametrize("method", ["save", "load"])
def test_an_optimizer_whose_model_is_not_at_hand_holds(method: str) -> None:
    text = APART.format(method=method)
    analysis, results = analyse_texts({"train.py": text})
    assert results["train.py"] == text
    assert any(f.level is Level.MANUAL and "no name here refers to" in f.message for f in analysis.findings)


def test_names_keep_the_prefix_of_ddp() -> None:
    body = 'names = [name.removeprefix("module.") for name, _ in model.named_parameters()]\n'
    assert migrated(body) == body


def test_annotations_for_ddp_stay() -> None:
    text = migrated("def first(m: DDP):\n    return m.module\n\n\ndef second(m: FSDP):\n    return m.module\n")
    assert "def first(m: DDP):\n    return m.module\n" in text
    assert "def second(m: FSDPModule):\n    return m\n" in text


def test_a_norm_may_be_a_plain_tensor() -> None:
    text = migrated("norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\nprint(norm.item())\n")
    assert "if isinstance(norm, DTensor):\n    norm = norm.full_tensor()\n" in text


def test_communication_hooks_of_ddp_stay() -> None:
    body = (
        "from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook\n"
        "if is_ddp(model):\n    model.register_comm_hook(None, fp16_compress_hook)\n"
    )
    assert migrated(body) == body


def test_keeping_by_option_takes_models_of_both() -> None:
    text = HEAD.replace("def is_ddp(model):\n    return isinstance(model, DDP)\n\n\n", "") + "model.module.eval()\n"
    analysis, results = analyse_texts({"train.py": text}, Options(ddp="keep"))
    assert "return DDP(model)" in results["train.py"] and "fully_shard(model)" in results["train.py"]
    assert results["train.py"].endswith('getattr(model, "module", model).eval()\n')
    constructors = [f for f in analysis.findings if f.rule == "FS120"]
    assert [f.level for f in constructors] == [Level.OK]


def test_members_of_fsdp1_are_not_those_of_ddp() -> None:
    body = "for module in model.modules():\n    if isinstance(module, FSDP):\n        module.clip_grad_norm_(1.0)\n"
    assert "torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)" in migrated(body)


def test_uses_that_only_ddp_comes_to_have_a_finding() -> None:
    body = "def run(m):\n    if not isinstance(m, DDP):\n        return\n    with m.no_sync():\n        m(x).sum().backward()\n"
    analysis, _ = analyse_texts({"train.py": HEAD + body + "\n\nrun(model)\n"})
    [finding] = [finding for finding in analysis.findings if finding.symbol.endswith(".no_sync")]
    assert finding.level is Level.OK
