"""An old name that a module gave on goes when nothing in the repository reads it any more."""

from __future__ import annotations

from migrating import analyse_texts

_PACKAGE = (
    "import torch\nfrom torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler\n\n\n"
    "def size(model):\n    return len(list(model.parameters()))\n\n\nShardedGradScaler = ShardedGradScaler\n"
)
_TRAIN = "import torch\n\nfrom helpers import ShardedGradScaler, size\n\nscaler = ShardedGradScaler()\nprint(size(scaler))\n"


def test_a_name_without_readers_goes() -> None:
    analysis, after = analyse_texts({"helpers.py": _PACKAGE, "train.py": _TRAIN})
    assert after["helpers.py"] == "import torch\n\n\ndef size(model):\n    return len(list(model.parameters()))\n"
    assert "from helpers import size\n\nscaler = torch.amp.GradScaler()" in after["train.py"]
    assert any("which nothing reads any more" in f.message for f in analysis.findings if f.rule == "FS305")


def test_a_name_that_is_read_stays() -> None:
    passed_on = {"helpers.py": _PACKAGE, "api.py": "from helpers import ShardedGradScaler\n"}
    _, after = analyse_texts(passed_on)
    assert after["helpers.py"].endswith("ShardedGradScaler = torch.amp.GradScaler\n")
    listed = _PACKAGE + '\n__all__ = ["ShardedGradScaler"]\n'
    _, after = analyse_texts({"helpers.py": listed, "train.py": _TRAIN})
    assert "ShardedGradScaler = torch.amp.GradScaler\n" in after["helpers.py"]
    _, after = analyse_texts({"helpers.py": _PACKAGE, "other.py": "import helpers\n\nmake(helpers)\n"})
    assert "ShardedGradScaler = torch.amp.GradScaler\n" in after["helpers.py"]
