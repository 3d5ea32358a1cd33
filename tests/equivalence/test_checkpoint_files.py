# pyright: reportArgumentType=false
"""Reading checkpoint files: what scripts really put into them, and files that are broken."""

import argparse
import dataclasses
import enum
import json
import struct
from collections import OrderedDict
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from to_fsdp2.equivalence.checkpoint_differences import compare_tensors  # noqa: E402
from to_fsdp2.equivalence.checkpoint_files import Shards, UnreadableCheckpoint, read  # noqa: E402
from to_fsdp2.equivalence.checkpoint_names import canonical, take_apart  # noqa: E402


class Precision(enum.Enum):
    HALF = "half"


@dataclasses.dataclass
class Configuration:
    width: int
    precision: Precision


class Explosive:
    def __reduce__(self):
        return (Path.touch, (Path("/tmp/to-fsdp2-was-executed"),))


def test_user_classes_are_read_without_being_imported(tmp_path):
    path = tmp_path / "file.pt"
    content = {
        "model": OrderedDict(w=torch.ones(2)),
        "args": argparse.Namespace(lr=0.1),
        "config": Configuration(6, Precision.HALF),
    }
    torch.save(content, path)
    form, tree = read(path)
    assert form == "torch.save"
    assert tree["args"]["lr"] == 0.1
    assert tree["config"]["width"] == 6
    assert "half" in tree["config"]["precision"].values()


def test_code_in_a_file_is_not_run(tmp_path):
    target = tmp_path / "made"
    Explosive.__reduce__ = lambda self: (Path.touch, (target,))
    torch.save({"model": {"w": torch.ones(2)}, "trap": Explosive()}, tmp_path / "file.pt")
    _, tree = read(tmp_path / "file.pt")
    assert torch.equal(tree["model"]["w"], torch.ones(2))
    assert not target.exists()


@pytest.mark.parametrize("new_format", [True, False])
def test_both_formats_of_torch_save(tmp_path, new_format):
    tensors = {
        "a": torch.arange(6.0).view(2, 3),
        "b": torch.ones(3, dtype=torch.bfloat16),
        "p": torch.nn.Parameter(torch.ones(1)),
    }
    torch.save(tensors, tmp_path / "file.pt", _use_new_zipfile_serialization=new_format)
    _, tree = read(tmp_path / "file.pt")
    assert all(torch.equal(tree[name], tensors[name]) for name in tensors)


def test_safetensors_agrees_with_its_own_library(tmp_path):
    library = pytest.importorskip("safetensors.torch")
    tensors = {
        "f32": torch.randn(3, 5), "bf16": torch.randn(7).bfloat16(), "i64": torch.arange(3),
        "bool": torch.tensor([True, False]),
        "scalar": torch.tensor(2.5), "empty": torch.empty(0, 4), "f8": torch.ones(3).to(torch.float8_e4m3fn),
    }  # fmt: skip
    library.save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    form, tree = read(tmp_path / "model.safetensors")
    assert form == "safetensors"
    assert tree.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert tree[name].dtype == tensor.dtype
        assert tree[name].shape == tensor.shape
        assert torch.equal(tree[name].float(), tensor.float())


def test_safetensors_without_the_library(tmp_path):
    data = struct.pack("<3f", 1.0, 2.0, 3.0)
    header = json.dumps(
        {
            "odd": {"dtype": "U8", "shape": [1], "data_offsets": [12, 13]},
            "w": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]},
        }
    ).encode()
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data + b"\x07")
    _, tree = read(tmp_path / "m.safetensors")
    assert tree["w"].tolist() == [1.0, 2.0, 3.0]
    assert tree["odd"].tolist() == [7]


def test_broken_files_say_what_is_wrong(tmp_path):
    (tmp_path / "cut.safetensors").write_bytes(struct.pack("<Q", 1000) + b"{}")
    (tmp_path / "cut.pt").write_bytes(b"PK\x03\x04 nothing")
    (tmp_path / "folder").mkdir()
    for name, text in [
        ("cut.safetensors", "complete"),
        ("cut.pt", "cannot be read"),
        ("folder", ".metadata"),
        ("gone.pt", "does not exist"),
    ]:
        with pytest.raises(UnreadableCheckpoint, match=text):
            read(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "clean"),
    [
        ("module.layers.0.weight", "layers.0.weight"),
        (
            "_fsdp_wrapped_module.layers.0._fsdp_wrapped_module._checkpoint_wrapped_module.weight",
            "layers.0.weight",
        ),
        ("_orig_mod.module.head.bias", "head.bias"),
        ("layers.0.weight", "layers.0.weight"),
    ],
)
def test_canonical_names(name, clean):
    assert canonical(name) == clean


def test_a_submodule_really_called_module_keeps_its_name():
    parts = take_apart({"module.weight": torch.ones(1), "weight": torch.zeros(1)})
    assert parts.models[""].tensors.keys() == {"module.weight", "weight"}


def test_shards_join_only_when_they_are_complete():
    halves = [torch.zeros(3, 2), torch.ones(2, 2)]
    shards = Shards("DTensor", (5, 2), torch.float32, [(None, halves[0])], dim=0)
    assert shards.join() is None
    shards.parts.append((None, halves[1]))
    assert torch.equal(shards.join(), torch.cat(halves))
    replicas = Shards("DTensor", (5, 2), torch.float32, [(None, part) for part in halves * 2], dim=0)
    assert torch.equal(replicas.join(), torch.cat(halves))
    placed = Shards("ShardedTensor", (2, 2), torch.float32, [((1, 0), torch.ones(1, 2)), ((0, 0), torch.zeros(1, 2))])
    assert torch.equal(placed.join(), torch.tensor([[0.0, 0.0], [1.0, 1.0]]))


def test_optimizers_are_told_from_models_and_named_by_the_recorded_order():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for n, p in model.named_parameters() if "bias" in n], "lr": 0.5},
            {"params": [model[0].weight, model[1].weight]},
        ]
    )
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    tree = {"state": {"net": model.state_dict(), "opt": optimizer.state_dict()}, "epoch": 3}
    parts = take_apart(tree, [[["0.bias", "1.bias"], ["0.weight", "1.weight"]]])
    assert parts.models.keys() == {"state/net"}
    assert parts.values == {"epoch": 3}
    saved = parts.optimizers["state/opt"]
    assert saved.by_number and saved.named
    assert saved.state["1.weight"]["exp_avg"].shape == (1, 3)
    assert saved.hyperparameters["0.bias"]["lr"] == 0.5
    assert not take_apart(tree, [[["too", "few"]]]).optimizers["state/opt"].named


def test_shards_over_two_dimensions_are_not_called_incomplete():
    parts = [(None, torch.zeros(2, 2)) for _ in range(4)]
    found = list(compare_tensors("w", torch.zeros(4, 4), Shards("DTensor", (4, 4), torch.float32, parts), 0.0))
    assert [difference.outcome for difference in found] == ["not compared"]


@pytest.mark.parametrize(
    ("new", "told"),
    [
        (torch.tensor([2.5]), [("dimension", "expected")]),
        (torch.tensor([2.25]), [("dimension", "expected"), ("values", "fail")]),
        (torch.tensor([2.5, 2.5]), [("local shard", "fail")]),
    ],
)
def test_a_scalar_may_have_got_a_dimension(new, told):
    differences = compare_tensors("scale", torch.tensor(2.5), new, 0.0)
    assert [(difference.kind, difference.outcome) for difference in differences] == told
