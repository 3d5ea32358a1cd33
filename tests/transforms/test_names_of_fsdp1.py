"""What FSDP1 put into names: kept where something is decided by whole names, told where it showed flat parameters."""

from __future__ import annotations

import pytest
from migrated_texts import findings, migrated

PROGRAM = """from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def clean(name):
    return name.replace("_fsdp_wrapped_module.", "")


def main(net, options, skipped):
    model = FSDP(net, {keywords})
    {more}
    return [p for n, p in model.named_parameters() if {test}]


main(None, {{}}, [])
"""
ORIGINAL = "use_orig_params=True, **options"


@pytest.mark.parametrize(("test", "renamed"), [
    ('"fsdp" in n', True), ('"_fsdp_wrapped_module." not in n', True), ("n in skipped", True), ('n == "head.weight"', True),
    ('n.startswith("head")', True), ('n.endswith("norm.weight")', True), ('"blocks.0.attention" in n', True),
    ('n.split(".")[-2] == "norm"', True), ("skipped(n)", True),
    ('n.endswith(".bias")', True), ('".norm." in n', True),
    ('"bias" in n', False), ("p.requires_grad", False), ('n.endswith("bias")', False), ('n.split(".")[-1] == "bias"', False),
    ("clean(n) in skipped", False), ('n.replace("_fsdp_wrapped_module.", "") in skipped', False), ('"norm." in n', False),
])  # fmt: skip
def test_names_that_decide_are_as_before(test: str, renamed: bool) -> None:
    text = migrated(train=PROGRAM.format(keywords=ORIGINAL, test=test, more="pass"))["train"]
    assert ("named_parameters(model)" in text) is renamed


def test_names_that_are_kept_are_so_where_others_decide() -> None:
    kept = "net.average = {n: p.clone() for n, p in model.named_parameters()}"
    text = migrated(train=PROGRAM.format(keywords=ORIGINAL, test='"bias" in n', more=kept))["train"]
    assert "named_parameters(model)" not in text
    text = migrated(train=PROGRAM.format(keywords=ORIGINAL, test="n in skipped", more=kept))["train"]
    assert text.count("named_parameters(model)") == 2


@pytest.mark.parametrize(("test", "levels"), [('"bias" in n', ["review"]), ("n in skipped", ["review"]), ("p.requires_grad", [])])
@pytest.mark.parametrize("keywords", ["", "use_orig_params=False"])
@pytest.mark.parametrize("listed", ["model.named_parameters()", "named", "sorted(model.named_parameters())", "kept.items()"])
def test_choices_by_names_of_flat_parameters_are_told(test: str, levels: list[str], keywords: str, listed: str) -> None:
    more = {"named": "named = list(model.named_parameters())", "kept.items()": "kept = dict(model.named_parameters())"}
    text = PROGRAM.format(keywords=keywords, test=test, more=more.get(listed, "pass"))
    text = text.replace("in model.named_parameters() if", f"in {listed} if")
    assert [f.level.value for f in findings(train=text) if f.rule == "FS609"] == levels


@pytest.mark.parametrize(("keywords", "more", "is_told"), [
    ("use_orig_params=skipped[0]", "pass", True), ("**options", "options['use_orig_params'] = skipped[0]", True),
    ("**options", "options['use_orig_params'] = True", False), ("use_orig_params=True", "pass", False),
])  # fmt: skip
def test_choices_by_names_where_a_run_decides_what_is_flat_are_told(keywords: str, more: str, is_told: bool) -> None:
    text = PROGRAM.format(keywords=keywords, test="n in skipped", more=more)
    (found,) = [f for f in findings(train=text) if f.rule == "FS609"]
    assert ("use_orig_params=False" in found.message) == is_told
    assert "for n, p in named_parameters(model)" in migrated(train=text)["train"]


@pytest.mark.parametrize(("context", "renamed"), [("FSDP.summon_full_params(model)", False), ("open('names.txt')", True)])
def test_inside_of_summon_full_params_names_are_the_models_own(context: str, renamed: bool) -> None:
    loop = f"with {context}:\n        skipped += [n for n, p in model.named_parameters() if n == 'head.weight']"
    text = migrated(train=PROGRAM.format(keywords=ORIGINAL, test="p.requires_grad", more=loop))["train"]
    assert ("named_parameters(model)" in text) is renamed
