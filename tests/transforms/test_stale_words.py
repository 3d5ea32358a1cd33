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


_POLICY = '''\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def shard(model):
    if model is not None:
        # CustomPolicy is there from torch 2.1 on
        from torch.distributed.fsdp.wrap import CustomPolicy

        policy = CustomPolicy(lambda module: hasattr(module, "block"))
    # see ShardingStrategy
    return FSDP(model, auto_wrap_policy=policy, sharding_strategy=ShardingStrategy.FULL_SHARD)
'''
_MESH = '''\
from torch.distributed.device_mesh import init_device_mesh


def mesh(ranks):
    """
    >>> model = FSDP(model, device_mesh=mesh(2))
    """
    return init_device_mesh("cuda", (2, ranks))
'''
_MESH_USER = """\
from meshes import mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def shard(model):
    return FSDP(model, device_mesh=mesh(2), sharding_strategy=ShardingStrategy.HYBRID_SHARD)
"""


def test_comments_about_any_old_class_are_named_and_those_above_its_import_go() -> None:
    analysis, texts = analyse_texts({"train.py": _POLICY})
    (finding,) = [f for f in analysis.findings if f.rule == "FS600" and "comments" in f.message]
    assert finding.message == "the import of ShardingStrategy goes with its last use; comments still speak of it (line 10)"
    assert "    if model is not None:\n        policy = lambda module" in texts["train.py"]


def test_examples_that_wrap_are_named_where_no_import_tells_of_them() -> None:
    analysis, _ = analyse_texts({"meshes.py": _MESH, "train.py": _MESH_USER})
    (finding,) = [f for f in analysis.findings if "comments" in f.message]
    assert finding.file == "train.py"
    assert finding.message.endswith("comments in meshes.py still speak of FSDP1 (line 6)")


_CHECKED = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


def shard(model, precision, path):
    if not isinstance(precision, MixedPrecision):
        raise TypeError("precision has to be a MixedPrecision " f"and no dict", "MixedPrecision")
    print("MixedPrecision")
    model = FSDP(model, mixed_precision=precision)
    assert isinstance(model, FSDP), "FSDP alone"
    return model


shard(torch.nn.Linear(2, 2), MixedPrecision(param_dtype=torch.bfloat16), "")
"""


def test_errors_name_the_class_that_is_asked_for() -> None:
    _, texts = analyse_texts({"train.py": _CHECKED})
    assert 'TypeError("precision has to be a MixedPrecisionPolicy " f"and no dict", "MixedPrecisionPolicy")' in texts["train.py"]
    assert '    print("MixedPrecision")\n' in texts["train.py"]
    assert 'isinstance(model, FSDPModule), "FSDP alone"' in texts["train.py"]


def test_a_method_that_only_passes_on_goes() -> None:
    _, results = analyse_texts({"train.py": _CHECKPOINTER})
    assert "def load" not in results["train.py"]
    assert 'name)\n\n    def name(self):\n        return "own"\n' in results["train.py"]


def test_a_method_of_its_own_signature_stays() -> None:
    _, results = analyse_texts({"train.py": _CHECKPOINTER.replace("(self, *args,", "(self, path=None, *args,")})
    assert "def load(self, path=None, *args, **kwargs):\n        return super().load(*args, **kwargs)\n" in results["train.py"]
