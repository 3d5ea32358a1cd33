"""State dicts, buffers and what lies inside of a wrapper: what is edited there, and what stays."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

STATES = HEAD + """def take_off(model):
    if isinstance(model, DDP):
        return hand_on(model.module)
    return model


def hand_on(model):
    return take_off(model)


def inside(model):
    return take_off(model) if options else model


class Trainer:
    def __init__(self, net, options):
        self.model = DDP(net, **options)

    @property
    def network(self):
        return self.model.module if isinstance(self.model, DDP) else self.model

    def save(self, path):
        torch.save({state}, path)


def main(net, options, path):
    Trainer(net, options).save(path)
"""


@pytest.mark.parametrize(
    ("state", "after"),
    [
        ("self.network.state_dict()", "torch.save(self.network.state_dict(), path)"),
        ("self.model.module.state_dict()", "torch.save(self.model.state_dict(), path)"),
        ("inside(self.model).state_dict()", "torch.save(inside(self.model).state_dict(), path)"),
        ("self.model.state_dict()", "torch.save(model_state(self.model), path)"),
        ("list(self.model.state_dict().values())", "torch.save(list(self.model.state_dict().values()), path)"),
    ],
)
def test_a_state_dict_stays_whole_and_keeps_its_keys(state: str, after: str) -> None:
    assert after in migrated(train=STATES.replace("{state}", state))["train"]


def test_a_scaler_stays_where_no_model_of_fsdp1_is_migrated() -> None:
    text = HEAD + "from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler\n\n\n"
    text += "class Loud(ShardedGradScaler):\n    pass\n\n\ndef f(net, options):\n    return DDP(net, **options), Loud()\n"
    new = migrated(train=text)["train"]
    assert "class Loud(ShardedGradScaler)" in new and "shard_like_ddp(net" in new


def test_parts_that_a_list_of_modules_was_made_of() -> None:
    text = HEAD + """class Heads(nn.ModuleList):
    def __init__(self, heads):
        super().__init__(heads.values())


def main(rank, path):
    heads = {"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)}
    optimizer = torch.optim.Adam([p for head in heads.values() for p in head.parameters()])
    model = DDP(Heads(heads))
    if rank == 0:
        torch.save(optimizer.state_dict(), path)
    return model
"""
    new = migrated(train=text)["train"]
    assert new.index("optimizer.state_dict()") < new.index("if rank == 0"), "all ranks gather it"


OWN_FORWARD = HEAD + """class Net(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, self.head = config, nn.Linear(config.width, config.width)

    def forward(self, x):
        return self.head(x)

    def generate(self, x):
        for _ in range(self.config.steps):
            x = {step}
        return x


class Config:
    width, steps = 2, 3


def main(x, options):
    model = DDP(Net(Config()), **options)
    return model.module.generate(x)
"""


@pytest.mark.parametrize(
    ("step", "after"),
    [
        ("self(x[:, -self.config.width :])", "return model.generate(x)"),
        ("self(x) @ self.head.weight", 'return forward_method(model, "generate")(x)'),
        ("self.head(x)", 'return forward_method(model, "generate")(x)'),
    ],
)
def test_a_method_that_calls_its_model_gathers_there(step: str, after: str) -> None:
    assert after in migrated(train=OWN_FORWARD.replace("{step}", step))["train"]


INSIDE_TOO = """import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Block(torch.nn.Module):
    pass


def run(blocks, options, x):
    blocks = [FSDP(block, **options) for block in blocks]
    for block in blocks:
        if {test}:
            x = block(x)
    return x
"""


@pytest.mark.parametrize(
    "test",
    [
        "isinstance(block, Block) or (hasattr(block, '_fsdp_wrapped_module') and isinstance(block._fsdp_wrapped_module, Block))",
        "hasattr(block, '_fsdp_wrapped_module') and isinstance(block._fsdp_wrapped_module, Block) or isinstance(block, Block)",
        "isinstance(block, Block) or isinstance(block, FSDP) and isinstance(block._fsdp_wrapped_module, Block)",
        "isinstance(block, Block) or (isinstance(block, FSDP) and isinstance(block.module, Block))",
        "(block.first and block.on) or (isinstance(block, FSDP) and block.module.first and block.module.on)",
        "isinstance(block._fsdp_wrapped_module if hasattr(block, '_fsdp_wrapped_module') else block, Block)",
    ],
)
def test_what_is_asked_of_a_model_needs_not_be_asked_inside_of_it(test: str) -> None:
    assert f"        if {test}:\n" in migrated(train=INSIDE_TOO.format(test=test))["train"]


@pytest.mark.parametrize(
    "test",
    [
        "hasattr(block, '_fsdp_wrapped_module') and isinstance(block._fsdp_wrapped_module, Block)",
        "x is None or hasattr(block, '_fsdp_wrapped_module') and isinstance(block._fsdp_wrapped_module, Block)",
        "isinstance(x, Block) or hasattr(block, '_fsdp_wrapped_module') and isinstance(block._fsdp_wrapped_module, Block)",
    ],
)
def test_what_is_asked_inside_of_a_wrapper_alone_is_asked_of_the_model(test: str) -> None:
    text = migrated(train=INSIDE_TOO.format(test=test))["train"]
    assert "isinstance(block, FSDPModule)" in text and "isinstance(block, Block)" in text.replace(
        "(block if isinstance(block, FSDPModule) else block._fsdp_wrapped_module)", "block"
    )


@pytest.mark.parametrize(("compiled", "after"), [("torch.compile(model)", "unwrap(model)"), ("model", "model")])
def test_what_a_compiled_model_holds_is_looked_for(compiled: str, after: str) -> None:
    main = "def main(net, options):\n    model = DDP(net, **options)\n    model = {}\n    print(model.module.state_dict())\n"
    assert f"print({after}.state_dict())" in migrated(train=HEAD + main.format(compiled))["train"]


OWN_SAVE = HEAD + """class Net(nn.Module):
    def save_pretrained(self, save_directory):
        torch.save(self.state_dict(), save_directory)


def main(unknown, options, path):
    model = DDP(nn.Linear(2, 2), **options)
    saved = unknown(model) if options else model.module
    saved.save_pretrained(save_directory=path)
"""


def test_a_programs_own_save_pretrained_is_given_no_state() -> None:
    assert "saved.save_pretrained(save_directory=path)" in migrated(train=OWN_SAVE)["train"]
    library = OWN_SAVE.replace("def save_pretrained", "def keep")
    assert "saved.save_pretrained(save_directory=path, state_dict=state_of(saved))" in migrated(train=library)["train"]


def test_entries_of_a_tuple_have_places() -> None:
    text = HEAD + "from typing import Tuple\n\n\ndef f(net) -> Tuple[DDP, int, DDP]:\n    return DDP(net), 1, DDP(net)\n"
    assert "def f(net) -> Tuple[FSDPModule, int, FSDPModule]:" in migrated(train=text)["train"]
