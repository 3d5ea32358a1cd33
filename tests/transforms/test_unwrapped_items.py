"""Models out of a dictionary: what was put into it says whether their keys begin with `module.`."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = HEAD + """

def inside(model):
    while hasattr(model, "module"):
        model = model.module
    return model


class Agent:
    def __init__(self):
        self.actor, self.critic = DDP(nn.Linear(4, 4)), DDP(nn.Linear(4, 4))

    def nets(self):
        return {{"actor": {actor}, "critic": {critic}}}

    def state(self):
        return {{name: net.state_dict() for name, net in self.nets().items()}}


agent = Agent()
torch.save(agent.nets()["actor"].state_dict(), "actor.pt")
torch.save(agent.state(), "agent.pt")
"""


@pytest.mark.parametrize(("actor", "critic", "is_inside"), [
    ("inside(self.actor)", "inside(self.critic)", True),
    ("self.actor.module", "inside(self.critic)", True),
    ("self.actor", "self.critic", False),
])  # fmt: skip
def test_keys_of_what_is_taken_out_of_a_dictionary(actor: str, critic: str, is_inside: bool) -> None:
    text = migrated(train=PROGRAM.format(actor=actor, critic=critic))["train"]
    assert ("model_state(net)" in text) is not is_inside
    assert ('model_state(agent.nets()["actor"])' in text) is not is_inside
