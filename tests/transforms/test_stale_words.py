"""Words about wrappers that stay behind, and methods that served nothing but them."""

from __future__ import annotations

from migrating import analyse_texts

_TRAIN = '''\
"""Training with DDP."""
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    """Wraps the model by DistributedDataParallel."""
    net = torch.nn.Linear(2, 2)
    # DDP comes last
    model = DDP(net)  # DDP itself
    label = "DDP"
    return model, label
'''
_CHECKPOINTER = """\
from saving import Checkpointer
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


class Own(Checkpointer):
    def save(self, name):
        with FSDP.state_dict_type(self.model, StateDictType.LOCAL_STATE_DICT):
            self.write(self.model.state_dict(), name)

    def load(self, *args, **kwargs):
        with FSDP.state_dict_type(self.model, StateDictType.LOCAL_STATE_DICT):
            return super().load(*args, **kwargs)

    def name(self):
        return "own"


def main(net):
    checkpointer = Own()
    checkpointer.model = FSDP(net)
    checkpointer.save("model")
"""


def test_comments_that_still_speak_of_the_wrapper_are_named() -> None:
    analysis, _ = analyse_texts({"train.py": _TRAIN})
    (finding,) = [f for f in analysis.findings if f.rule == "FS600"]
    assert finding.message.endswith("goes with its last use; comments still speak of it (lines 1, 7, 9)")


def test_a_method_that_only_passes_on_goes() -> None:
    _, results = analyse_texts({"train.py": _CHECKPOINTER})
    assert "def load" not in results["train.py"]
    assert 'name)\n\n    def name(self):\n        return "own"\n' in results["train.py"]


def test_a_method_of_its_own_signature_stays() -> None:
    _, results = analyse_texts({"train.py": _CHECKPOINTER.replace("(self, *args,", "(self, path=None, *args,")})
    assert "def load(self, path=None, *args, **kwargs):\n        return super().load(*args, **kwargs)\n" in results["train.py"]
