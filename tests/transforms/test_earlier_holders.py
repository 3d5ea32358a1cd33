"""What holds parameters before a wrap: sharding makes new ones, which it has to be given."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, helpers

TRAIN = HEAD + """from models import build
{imports}

def main(path):
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    {between}
    model = DDP(model)
    for batch in torch.load(path):
        model(batch).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    main("data.pt")
"""
MODELS = """import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.body(x.mean(0, keepdim=True))


def build():
    return Net()
"""


@pytest.mark.parametrize(
    ("imports", "between"),
    [
        ("from elsewhere import amp\n", "model, optimizer = amp.initialize(model, optimizer, opt_level='O1')"),
        ("from elsewhere import prepare\n", "model = prepare(model)"),
        ("", ""),
    ],
)
def test_an_optimizer_is_rebound_also_where_code_out_of_sight_gives_the_model(imports: str, between: str) -> None:
    text = helpers(train=TRAIN.format(imports=imports, between=between), models=MODELS)
    assert "rebind_parameters(" in text or "rebound_parameters" in text


HOOKED = HEAD + """from models import build


def main(path):
    model = build()
    {before}
    model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in torch.load(path):
        model(batch).sum().backward()
        optimizer.step()


main("data.pt")
"""


@pytest.mark.parametrize(
    ("before", "moves"),
    [
        ("model.body.weight.register_hook(print)", True),
        ("model.body.bias.register_post_accumulate_grad_hook(print)", True),
        ("model.register_forward_hook(print)", False),
    ],
)
def test_hooks_of_parameters_move_to_those_that_sharding_makes(before: str, moves: bool) -> None:
    text = helpers(train=HOOKED.format(before=before), models=MODELS)
    assert ("rebind_parameters(" in text or "rebound_parameters" in text) is moves
