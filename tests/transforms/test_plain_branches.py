"""What a type test says about a model: where it is not wrapped, its state is whole and stays as it is."""

from __future__ import annotations

import pytest
from state_programs import DDP, FSDP, migrated

SAVE = """
def save(model, optimizer):
{body}


def main(net):
    model = {wrapper}(net)
    optimizer = torch.optim.AdamW(model.parameters())
    save(model, optimizer)
"""


def saved(body: str, wrapper: str = "FSDP") -> str:
    """The migrated body of a function that saves a wrapped model."""
    indented = "\n".join(f"    {line}" for line in body.splitlines())
    after = migrated(FSDP if wrapper == "FSDP" else DDP, SAVE.format(body=indented, wrapper=wrapper))
    return after.partition("def save(model, optimizer):\n")[2].partition("\n\n\ndef main")[0]


@pytest.mark.parametrize(
    "body",
    [
        "if isinstance(model, FSDP):\n    pass\nelse:\n    state = {what}",
        "sharded = isinstance(model, FSDP)\nif sharded:\n    pass\nelse:\n    state = {what}",
        "if not isinstance(model, FSDP) and optimizer:\n    state = {what}",
        "if isinstance(model, (FSDP, torch.nn.parallel.DistributedDataParallel)):\n    return\nstate = {what}",
        "state = None if isinstance(model, FSDP) else {what}",
    ],
)
@pytest.mark.parametrize(
    "what", ["model.state_dict()", "optimizer.state_dict()", "model.save_pretrained('out')", "model.load_state_dict(x)"]
)
def test_state_of_a_plain_model_stays(body: str, what: str) -> None:
    assert f"state = {what}" in saved(body.format(what=what)) or f"else {what}" in saved(body.format(what=what))


@pytest.mark.parametrize(
    "body",
    [
        "if isinstance(model, FSDP):\n    state = model.state_dict()",
        "if isinstance(model, FSDP) and optimizer:\n    pass\nelse:\n    state = model.state_dict()",
        "sharded = isinstance(model, FSDP)\nsharded = sharded and optimizer\nif not sharded:\n    state = model.state_dict()",
        "if isinstance(model, torch.nn.parallel.DistributedDataParallel):\n    pass\nelse:\n    state = model.state_dict()",
        "if isinstance(optimizer, FSDP):\n    pass\nelse:\n    state = model.state_dict()",
    ],
)
def test_other_tests_say_nothing(body: str) -> None:
    assert "get_model_state_dict(" in saved(body)


def test_wrapped_behind_the_test() -> None:
    after = migrated(
        FSDP,
        """
        def main(net):
            if isinstance(net, FSDP):
                pass
            else:
                net = FSDP(net)
                state = net.state_dict()
        """,
    )
    assert "state = get_model_state_dict(" in after


def test_unwrapping_that_keeps_data_parallel() -> None:
    after = saved(
        "if isinstance(model, (torch.nn.DataParallel, DDP)):\n    state = model.module.state_dict()\n"
        "else:\n    state = model.state_dict()",
        "DDP",
    )
    assert "else:\n        state = get_model_state_dict(" in after
