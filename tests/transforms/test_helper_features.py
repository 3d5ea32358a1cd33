"""Helpers come without what the code of a repository surely does not need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.rewrites.helper_place import features_left_out, is_current, module_text
from to_fsdp2.transforms.rewrites.helper_source import definitions, features_by_file, features_of
from to_fsdp2.transforms.text.source import Source

FEATURES = sorted(frozenset[str]().union(*features_by_file().values()))


def test_what_is_left_is_whole(tmp_path: Path) -> None:
    """No name is missing, and none is left that nothing reads: without any one feature, with any one alone, with none."""
    everything = frozenset(FEATURES)
    variants = {f"without_{feature}": everything & {feature, f"{feature}.set"} for feature in FEATURES}
    variants |= {f"with_{feature}": everything - {feature} for feature in FEATURES if not feature.endswith(".set")}
    for name, absent in {**variants, "without_any": everything, "with_all": frozenset[str]()}.items():
        concerned = {file for file, features in features_by_file().items() if features & (absent or everything)}
        names = [one.name for one in definitions().values() if one.file in concerned]
        text = module_text(names, absent)
        assert "needed for:" not in text
        (tmp_path / f"{name.replace('.', '_')}.py").write_text(text)
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "F", str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stdout == "All checks passed!\n"


def test_a_module_says_what_it_was_made_for() -> None:
    names = {"shard_like_ddp", "state_of"}
    absent = features_of(names) - {"create_graph", "ddp.static_graph"}
    text = module_text(names, absent)
    assert len(text) < len(module_text(names))
    assert "allow_double_backward(part)" in text and "static_graph: bool" in text and "inference" not in text
    assert features_left_out(text) == absent
    assert is_current(text)
    assert not is_current(text.replace("static_graph: bool", "static: bool"))


def test_an_argument_that_is_not_the_default_is_heeded() -> None:
    """`broadcast_buffers=False` is no missing argument: True is what DDP does without it."""
    source = Source.decode("train.py", (
        b"from torch.nn.parallel import DistributedDataParallel as DDP\n\n\n"
        b"def wrap(net, ids):\n    return DDP(net, device_ids=ids, broadcast_buffers=False, static_graph=False)\n"
    ))  # fmt: skip
    analysis = analyse([extract(source)], {"train.py": source}.__getitem__, Options(), paths=["train.py"])
    text = "\n".join(analysis.texts.values()) + "\n".join(analysis.new_files.values())
    assert "if broadcast_buffers is False:" in text
    assert "if static_graph" not in text
