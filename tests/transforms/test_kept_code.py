"""Annotations and assertions stay with the code of FSDP1 that they speak for."""

from __future__ import annotations

from migrating import analyse_texts

_HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
_WRAP = "\n\nmodel = FSDP(build(), use_orig_params=True)\n"


def test_annotations_of_flat_parameter_code_stay() -> None:
    checkpointer = (
        "class Local:\n"
        "    def prepare(self, model: FSDP) -> None:\n"
        "        from torch.distributed.fsdp._runtime_utils import _lazy_init\n\n"
        "        _lazy_init(model, model)\n\n"
        "    def save(self, model: FSDP) -> None:\n"
        "        self.prepare(model)\n\n\n"
        "def count(model: FSDP) -> int:\n"
        "    return sum(p.numel() for p in model.parameters())\n"
    )
    _, after = analyse_texts({"local.py": _HEAD + checkpointer})
    assert "def prepare(self, model: FSDP)" in after["local.py"]
    assert "def save(self, model: FSDP)" in after["local.py"]
    assert "def count(model: FSDPModule)" in after["local.py"]


def test_a_setting_of_the_wrapper_keeps_no_annotation() -> None:
    trainer = (
        "class Trainer:\n    model: FSDP\n\n"
        "    def clip(self):\n        self.optimizer.clip(process_group=self.model.process_group)\n"
    )
    analysis, after = analyse_texts({"trainer.py": _HEAD + trainer})
    assert "    model: FSDPModule\n" in after["trainer.py"]
    assert "FullyShardedDataParallel" not in after["trainer.py"]
    assert [f.rule for f in analysis.findings if f.level.value == "manual"] == ["FS805"]


def test_an_assertion_stays_with_what_it_lets_in() -> None:
    saver = (
        "from torch.distributed.fsdp._runtime_utils import _lazy_init\n\n\n"
        "def write(model):\n    _lazy_init(model, model)\n\n\n"
        "def save(model):\n    assert isinstance(model, FSDP)\n    write(model)\n\n\n"
        "def train(model):\n    assert isinstance(model, FSDP)\n    step(model)\n"
    )
    analysis, after = analyse_texts({"saver.py": _HEAD.rstrip("\n") + "\n" + saver})
    assert "    assert isinstance(model, FSDP)\n    write(model)" in after["saver.py"]
    assert "    assert isinstance(model, FSDPModule)\n    step(model)" in after["saver.py"]
    assert any(f.rule == "FS603" and f.blocked_by for f in analysis.findings)


def test_a_test_stays_that_answers_for_flat_parameter_code_alone() -> None:
    units = (
        "def units(model):\n    return [m for m in model.modules() if isinstance(m, FSDP)]\n\n\n"
        "def save(model):\n    _lazy_init(model, model)\n    return [unit._handle for unit in units(model)]\n"
    )
    head = _HEAD.rstrip("\n") + "\nfrom torch.distributed.fsdp._runtime_utils import _lazy_init\n\n\n"
    _, after = analyse_texts({"local.py": head + units})
    assert "if isinstance(m, FSDP)]" in after["local.py"]
    _, after = analyse_texts({"local.py": head + units + "\n\ndef count(model):\n    return len(units(model))\n"})
    assert "if isinstance(m, FSDPModule)]" in after["local.py"]


def test_an_import_that_never_served_stays() -> None:
    text = "from torch.nn.parallel import DistributedDataParallel\n\n\ndef scale(x):\n    return x * 2\n"
    user = "from scaling import scale\n\nprint(scale(1))\n"
    _, after = analyse_texts({"scaling.py": text, "main.py": user})
    assert after["scaling.py"] == text


def test_state_that_nothing_loads_is_left_to_a_person() -> None:
    text = (
        _HEAD + "import torch\n\n\ndef load(model, path):\n    full = torch.load(path)\n"
        "    sharded = FSDP.scatter_full_optim_state_dict(full, model)\n    print('loaded')\n"
    )
    analysis, after = analyse_texts({"load.py": text})
    assert "scatter_full_optim_state_dict(full, model)" in after["load.py"]
    assert any(f.rule == "FS407" and "no optimizer gets the state" in f.message for f in analysis.findings)
