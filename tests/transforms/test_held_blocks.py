"""Where models are held whole for many lines: these stay where they are, between two lines that enter and leave the context."""

from __future__ import annotations

import textwrap

import pytest
from guarded_programs import HEAD
from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.text.source import Source

PROGRAM = """
def train(model, optimizer, loader, folder):
    for step, x in enumerate(loader):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
%s


def main(net, loader):
    model = DDP(net)
    train(model, torch.optim.SGD(model.parameters(), 0.1), loader, "out")
"""
WORK = "\n".join(f"print({number})" for number in range(6))


def migrated(block: str) -> str:
    text = HEAD + PROGRAM % textwrap.indent(textwrap.dedent(block), " " * 8)
    source = Source.decode("train.py", text.encode())
    analysis = analyse([extract(source)], lambda _: source, Options(target_torch=(2, 13)), paths=["train.py"])
    assert not analysis.errors
    return analysis.texts["train.py"]


def guarded(work: str) -> str:
    return "if is_main():\n    save(model.module, folder)\n" + textwrap.indent(work, "    ")


def test_a_short_block_goes_into_the_context() -> None:
    text = migrated(guarded("print(1)"))
    assert "        with whole_on_each_rank(model):\n            if is_main():\n" in text
    assert "held" not in text.replace("held_", "").partition("def train")[2]


def test_the_lines_of_a_long_block_stay() -> None:
    text = migrated(guarded(WORK) + "\nprint(model)")
    assert "        held = entered(whole_on_each_rank(model))\n        if is_main():\n            save(" in text
    assert "            print(5)\n        held.close()\n        print(model)\n" in text
    assert "with whole_on_each_rank" not in text.partition("def train")[2]


def test_it_is_left_where_the_block_is_left() -> None:
    text = migrated(guarded(f"{WORK}\nif step > 3:\n    return\n"))
    assert "                held.close()\n                return\n        held.close()\n" in text


def test_what_follows_an_early_continue() -> None:
    block = f"if not is_main():\n    continue\nsave(model.module, folder)\n{WORK}"
    text = migrated(block)
    assert "        held = entered(whole_on_each_rank(model))\n        if not is_main():\n" in text
    assert "            held.close()\n            continue\n" in text
    assert "        print(5)\n        held.close()\n" in text


def test_nothing_follows_a_block_that_never_ends() -> None:
    text = migrated(guarded(f"{WORK}\nreturn None") + "\nelse:\n    return 1")
    assert text.count("held.close()\n            return") == 2
    assert text.partition("def train")[2].count("held.close()") == 2


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(guarded(f"{WORK}\nreturn evaluated(model)"), id="what is given back is computed inside"),
        pytest.param(
            guarded(WORK + "".join(f"\nif step > {n}:\n    return" for n in range(3))), id="it is left in many places"
        ),
        pytest.param(
            f"try:\n{textwrap.indent(guarded(WORK), '    ')}\nexcept OSError:\n    pass", id="an exception is caught"
        ),
        pytest.param(
            f"import contextlib\nwith contextlib.suppress(OSError):\n{textwrap.indent(guarded(WORK), '    ')}",
            id="an exception is suppressed",
        ),
    ],
)
def test_what_lines_cannot_do_is_a_block(block: str) -> None:
    assert "with whole_on_each_rank(model):" in migrated(block)


def test_contexts_inside_of_each_other_have_two_names() -> None:
    block = guarded(WORK) + "\n" + guarded(WORK)
    text = migrated("if not is_main():\n    continue\n" + block)
    opened = [line.split()[0] for line in text.splitlines() if "= entered(" in line]
    assert len(opened) == len(set(opened))
    once = migrated(block)
    assert once.count("held = entered(") == 2


def test_states_that_are_only_written_are_taken_once() -> None:
    block = "if is_main():\n    torch.save(model.state_dict(), 'a.pt')\n"
    block += "    torch.save({'model': model.state_dict(), 'step': step}, 'b.pt')"
    text = migrated(block)
    assert text.count("model_state_dict = model_state(model)\n") == 1
    assert "torch.save(model_state_dict, 'a.pt')" in text and "{'model': model_state_dict, 'step': step}" in text


def test_states_that_something_else_gets_are_each_its_own() -> None:
    block = "if is_main():\n    torch.save(model.state_dict(), 'a.pt')\n    torch.save(converted(model.state_dict()), 'b.pt')"
    text = migrated(block)
    assert "torch.save(model_state_dict, 'a.pt')" in text and "torch.save(converted(model_state_dict_2), 'b.pt')" in text


def test_more_states_than_two_are_read_where_they_are() -> None:
    block = guarded(
        "torch.save(model.state_dict(), 'a.pt')\n"
        "torch.save(converted(model.state_dict()), 'b.pt')\n"
        "torch.save(optimizer.state_dict(), 'c.pt')\n"
        "print(1)\nprint(2)\nprint(3)"
    ).replace("    save(model.module, folder)\n", "")
    text = migrated(block).partition("def train")[2]
    assert "held = entered(whole_on_each_rank(model, optimizer))\n" in text and "model_state_dict" not in text
