"""Second names for the wrapper classes."""

from __future__ import annotations

from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

MAIN = "def main(net):\n    model = Wrapper(net)\n    assert isinstance(model, Wrapper)\n    return model.state_dict()\n"


def test_uses_of_another_name_are_migrated() -> None:
    code = f"from torch.distributed.fsdp import FullyShardedDataParallel\n\nWrapper = FullyShardedDataParallel\n\n\n{MAIN}"
    analysis, results = analyse_texts({"train.py": code})
    assert "assert isinstance(model, FSDPModule)\n" in results["train.py"]
    assert not [finding for finding in analysis.findings if finding.level is Level.MANUAL]
    again, _ = analyse_texts(results)
    assert not again.edits


def test_another_name_may_be_used_in_other_files() -> None:
    texts = {
        "names.py": "import torch.nn as nn\n\nWrapper = nn.parallel.DistributedDataParallel\n",
        "train.py": "from names import Wrapper\n\n\n" + MAIN.replace("(net)\n  ", "(net, broadcast_buffers=False)\n  "),
    }
    analysis, results = analyse_texts(texts)
    assert "fully_shard(net)\n" in results["train.py"]
    assert not [finding for finding in analysis.findings if finding.level is Level.MANUAL]


def test_a_name_that_may_be_either_wrapper_is_for_a_person() -> None:
    code = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\n"
        "def main(net, sharded):\n    wrapper = DDP\n    if sharded:\n        wrapper = FSDP\n"
        "    return wrapper(net).state_dict()\n"
    )
    _, results = analyse_texts({"train.py": code})
    assert results["train.py"] == code
