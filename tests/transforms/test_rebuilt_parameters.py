"""Library functions that take parameters away from modules and give them others."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings
from to_fsdp2.transforms.findings import Level


@pytest.mark.parametrize(("before", "behind", "levels"), [
    ("pass", 'prune.remove(model.module.layer, "weight")', [Level.MANUAL]),
    ("pass", 'prune.remove(module=model.module.layer, name="weight")', [Level.MANUAL]),
    ("targets = read_targets(net)", "for part, name in targets:\n        prune.remove(part, name)", [Level.REVIEW]),
    ('prune.remove(net.layer, "weight")', "pass", []),
    ("pass", "last = nn.utils.weight_norm(nn.Linear(2, 2))", []),
    ("other = nn.Linear(2, 2)", 'prune.remove(other, "weight")', []),
    ("pass", "model.module.layer.weight = nn.Parameter(torch.ones(3, 2))", [Level.MANUAL]),
    ("pass", "net.layer.bias = nn.Parameter(net.layer.bias.repeat(2))", [Level.MANUAL]),
    ("net.layer.weight = nn.Parameter(torch.ones(3, 2))", "pass", []),
    ("other = nn.Linear(2, 2)", "other.weight = nn.Parameter(torch.ones(3, 2))", []),
])  # fmt: skip
def test_what_fully_shard_would_not_know_of_is_told(before: str, behind: str, levels: list[Level]) -> None:
    program = HEAD + (
        "from targets import read_targets\nfrom torch.nn.utils import prune\n\n\n"
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.layer = nn.Linear(2, 2)\n\n\n"
        f"def main():\n    net = Net()\n    {before}\n    model = nn.parallel.DistributedDataParallel(net)\n    {behind}\n\n\n"
        "main()\n"
    )
    assert [finding.level for finding in findings(train=program) if finding.rule == "FS419"] == levels


@pytest.mark.parametrize(("call", "is_told"), [("model.module.shrink()", True), ("model.module.count()", False)])
@pytest.mark.parametrize("own", ["self", "m"])
def test_methods_that_give_their_model_other_layers_are_told(call: str, own: str, is_told: bool) -> None:
    program = HEAD + (
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.layer = nn.Linear(2, 2)\n\n"
        f"    def shrink(self):\n        m = self\n        {own}.layer = nn.Linear(1, 1)\n        return m\n\n"
        "    def count(self):\n        self.layer.weight.sum()\n        self.calls = 1\n        return self\n\n\n"
        f"def main():\n    model = DDP(Net())\n    {call}\n\n\nmain()\n"
    )
    told = [found for found in findings(train=program) if found.rule == "FS308" and found.level is Level.MANUAL]
    assert bool(told) == is_told


@pytest.mark.parametrize(("exported", "is_told"), [("copy.deepcopy(net)", False), ("net", True)])
@pytest.mark.parametrize("rebuilt", [
    'parametrize.remove_parametrizations(self.layers[0], "weight")',
    'for layer in self.layers:\n            parametrize.remove_parametrizations(layer, "weight")',
    'def rebuild(m):\n            parametrize.remove_parametrizations(m, "weight")\n\n        self.apply(rebuild)',
])  # fmt: skip
def test_methods_rebuild_the_object_that_they_are_called_on(exported: str, is_told: bool, rebuilt: str) -> None:
    """A copy of an average is a plain model, whatever its class is wrapped in elsewhere."""
    program = HEAD + (
        "import copy\nfrom torch.nn.utils import parametrize\nfrom torch.nn.utils.parametrizations import weight_norm\n\n\n"
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.layers = nn.ModuleList([weight_norm(nn.Linear(2, 2))])\n\n"
        f"    def remove_weight_norm(self):\n        {rebuilt}\n\n\n"
        "def main():\n    net = Net()\n    model = DDP(net)\n    model(torch.ones(1, 2)).sum().backward()\n"
        f"    exported = {exported}\n    exported.remove_weight_norm()\n\n\nmain()\n"
    )
    assert [f.level for f in findings(train=program) if f.rule == "FS419"] == ([Level.MANUAL] if is_told else [])


@pytest.mark.parametrize(("made", "levels"), [("nn.Linear(2, 2)", []), ("first", [Level.MANUAL])])
def test_layers_that_a_constructor_makes_get_their_norm(made: str, levels: list[Level]) -> None:
    """Another model may be wrapped by then: the layer is as new as the model that it becomes a part of."""
    program = HEAD + (
        "from torch.nn.utils import spectral_norm\n\n\n"
        "class Net(nn.Module):\n    def __init__(self, first):\n        super().__init__()\n"
        f"        self.layer = self.normed({made})\n\n"
        "    def normed(self, module):\n        return spectral_norm(module)\n\n\n"
        "class Trainer:\n    def __init__(self):\n        one = nn.Linear(2, 2)\n        self.generator = self.wrapped(one)\n"
        "        self.critic = self.wrapped(Net(one))\n\n    def wrapped(self, network):\n        return DDP(network)\n\n\n"
        "trainer = Trainer()\n"
    )
    assert [finding.level for finding in findings(train=program) if finding.rule == "FS419"] == levels


@pytest.mark.parametrize(("layers", "levels"), [("nn.ModuleList([nn.Linear(2, 2)])", []), ("kept", [Level.MANUAL])])
def test_layers_of_a_list_that_is_being_made_get_other_parameters(layers: str, levels: list[Level]) -> None:
    program = HEAD + (
        f"def make(kept):\n    layers = {layers}\n    bias = layers[0].bias\n"
        "    layers[0].bias = nn.Parameter(bias, requires_grad=bias.requires_grad)\n    return layers\n\n\n"
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.layers = nn.ModuleList([nn.Linear(2, 2)])\n\n\n"
        "def main():\n    model = DDP(Net())\n    return make(model.module.layers)\n\n\nmain()\n"
    )
    assert [finding.level for finding in findings(train=program) if finding.rule == "FS419"] == levels
