"""A rank that has saved its model, and loads it anew under the same name: in front of the guard the name is the trained one's."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = HEAD + """from transformers import AutoModel


def main(name, path, rounds, local_rank):
    model = AutoModel.from_pretrained(name)
    if local_rank != -1:
        model = DDP(model)
    for number in range(rounds):
        model(torch.ones(2, 4))
        {saving}
    if torch.distributed.get_rank() == 0:
        inner = model.module if hasattr(model, "module") else model
        inner.save_pretrained(path)
        model = AutoModel.from_pretrained(path)
        print(model(torch.ones(2, 4)))


main("bert", "out", 3, 0)
"""


def test_the_trained_model_is_named_at_the_guard() -> None:
    text = migrated(train=PROGRAM.format(saving="pass"))["train"]
    assert "whole_on_each_rank(model)" in text and "everything_whole_on_each_rank" not in text


@pytest.mark.parametrize("reloaded", ["model = AutoModel.from_pretrained(path)", "pass"])
def test_not_where_the_next_round_finds_the_new_one(reloaded: str) -> None:
    saving = f"if torch.distributed.get_rank() == 0:\n            model.save_pretrained(path)\n            {reloaded}"
    text = migrated(train=PROGRAM.format(saving=saving))["train"]
    in_loop = text[text.index("for number") : text.index("inner = ")]
    assert ("whole_on_each_rank(model)" in in_loop) is (reloaded == "pass")


def test_a_comprehension_binds_its_name_before_what_stands_in_front_of_it() -> None:
    program = HEAD + """def main(nets, rank):
    models = {name: DDP(net) for name, net in nets.items()}
    if rank == 0 and len(models) > 1:
        found = {
            f"{name}/{key}": [p.std().item(), p.abs().max().item()]
            for name, model in models.items()
            for key, p in model.named_parameters()
        }
        print(found)


main({"a": nn.Linear(4, 4)}, int(torch.distributed.get_rank()))
"""
    text = migrated(train=program)["train"]
    assert "whole_on_each_rank(models" in text or "everything_whole_on_each_rank(" in text
    assert "whole_on_each_rank(model," not in text and "whole_on_each_rank(model)" not in text
