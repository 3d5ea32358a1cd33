"""Names of parameters that meet others which a function puts together from the parts of the model: both lose DDP's prefix."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

WALKS = """def names_of(model, forbidden):
    found = [f"{name}.{inner}" for name, child in model.named_children() for inner in names_of(child, forbidden)]
    return found + list(model._parameters)


"""
GROUPS = """def groups(net, options):
    model = DDP(net, **options)
    decay = {made}
    decay = [name for name in decay if "bias" not in name]
    rest = []
    for n, p in model.named_parameters():
        if n not in decay:
            rest.append(p)
    return [p for n, p in model.named_parameters() if n in decay], rest
"""


@pytest.mark.parametrize("made", ["names_of(model, [nn.LayerNorm])", "set(names_of(model, []))"])
@pytest.mark.parametrize("where", [WALKS, "from transformers.trainer_pt_utils import get_parameter_names as names_of\n\n\n"])
def test_they_agree_without_a_prefix(made: str, where: str) -> None:
    text = migrated(train=HEAD + where + GROUPS.format(made=made))["train"]
    assert text.count("in model.named_parameters()") == 2


@pytest.mark.parametrize("made", [
    "open('decay.txt').read().split()", "['module.weight']", "[n for n, p in model.named_parameters() if 'module' in n]",
])  # fmt: skip
def test_others_have_it_on_both_sides(made: str) -> None:
    text = migrated(train=HEAD + GROUPS.format(made=made))["train"]
    assert "in model.named_parameters()" not in text


@pytest.mark.parametrize("made", [
    "[n for n, p in model.named_parameters() if p.ndim > 1]",
    "{n for n, _ in model.named_parameters() if n.split('.')[-2] == 'w'}",
    "sorted(n for n, _ in model.named_parameters() if n.endswith('weight'))",
])  # fmt: skip
def test_names_of_one_model_agree_with_each_other(made: str) -> None:
    text = migrated(train=HEAD + GROUPS.format(made=made))["train"]
    assert text.count("in model.named_parameters()") == 3


@pytest.mark.parametrize("keeps", ["torch.save(decay, 'names.pt')", "decay.append('module.head')", "decay = decay + names"])
def test_what_is_kept_or_mixed_has_it_everywhere(keeps: str) -> None:
    groups = GROUPS.replace("    rest = []\n", f"    {keeps}\n    rest = []\n")
    text = migrated(train=HEAD + groups.format(made="[n for n, p in model.named_parameters() if p.ndim > 1]"))["train"]
    assert text.count("named_parameters(model)") == 3


@pytest.mark.parametrize(("made", "agree"), [
    ("{n: p.clone() for n, p in model.named_parameters()}", True), ("dict(model.named_parameters())", True),
    ("{}\n    for n, p in model.named_parameters():\n        kept[n] = p.clone()", True),
    ("{n: p.clone() for n, p in model.named_parameters()}\n    torch.save(kept, 'kept.pt')", False),
    ("{n: p.clone() for n, p in model.named_parameters()}\n    kept['module.head'] = None", False),
    ("{n.upper(): p.clone() for n, p in model.named_parameters()}", False),
])  # fmt: skip
def test_dictionaries_of_a_function(made: str, agree: bool) -> None:
    program = f"""def swap(net, options):
    model = DDP(net, **options)
    kept = {made}
    for n, p in model.named_parameters():
        p.data.copy_(kept[n])
"""
    assert ("named_parameters(model)" not in migrated(train=HEAD + program)["train"]) is agree


COLLECTED = (
    HEAD
    + """def groups(net, options):
    model = DDP(net, **options)
    {names}


def main(net, options):
    return groups(net, options)
"""
)


@pytest.mark.parametrize(
    ("names", "stays"),
    [
        ("named = model.named_parameters()\n    found = {}\n    for k, v in named:\n        found[k] = v\n"
         "    return [v for n, v in found.items() if 'bn' in n]", True),
        ("named = model.named_parameters()\n    found = {}\n    for k, v in named:\n        found[k] = v\n"
         "    return found", False),
        ("modules = [n for n, m in model.named_modules() if m.training]\n    if modules:\n        print(len(modules))", True),
        ("modules = [n for n, m in model.named_modules() if m.training]\n    if options[modules[0]]:\n        print(1)", False),
    ],
)  # fmt: skip
def test_names_that_are_collected_and_asked_for_their_inner_texts(names: str, stays: bool) -> None:
    text = migrated(train=COLLECTED.format(names=names))["train"]
    assert ("(model)" not in text.partition("shard_like_ddp(net")[2].partition("def main")[0]) == stays


@pytest.mark.parametrize(("use", "agrees"), [
    ("print('params', json.dumps({n: p.numel() for n, p in model.named_parameters()}, indent=2))", True),
    ("logging.info(', '.join(n for n, p in model.named_parameters() if p.requires_grad))", True),
    ("print(str([n for n, _ in model.named_parameters()]))", True),
    ("open('names.json', 'w').write(json.dumps([n for n, _ in model.named_parameters()]))", False),
    ("print(sum(p.numel() for n, p in model.named_parameters() if n in options['names']))", False),
])  # fmt: skip
def test_names_that_are_only_shown(use: str, agrees: bool) -> None:
    program = f"def show(net, options):\n    model = DDP(net, **options)\n    {use}\n"
    text = migrated(train=HEAD + "import json\nimport logging\n\n\n" + program)["train"]
    assert ("named_parameters(model)" not in text) is agrees
