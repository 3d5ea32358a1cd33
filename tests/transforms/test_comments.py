"""Comments survive, however the statement around them is written, broken and commented: as an idiom and as a fallback."""
# ruff: noqa: E501 (one line for each way to write a statement)

from __future__ import annotations

import io
import textwrap
import tokenize

import pytest
from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.text.source import Source

HEAD = """\
import functools
import torch
import torch.distributed as dist
from contextlib import nullcontext
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(2)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


"""

WRAPS = {
    "behind": "model = FSDP(model)  # C1",
    "above": "# C1\n# C2\nmodel = FSDP(model)",
    "above_and_behind": "# C1\nmodel = FSDP(model)  # C2",
    "below": "model = FSDP(model)\n# C1",
    "in_parentheses": "model = FSDP(  # C1\n    model,  # C2\n    # C3\n)  # C4",
    "before_the_first_argument": "model = FSDP(\n    # C1\n    model)",
    "each_argument": "model = FSDP(\n    model,  # C1\n    auto_wrap_policy=ModuleWrapPolicy({Block}),  # C2\n)",
    "between_arguments": "model = FSDP(\n    model,\n    # C1\n    auto_wrap_policy=ModuleWrapPolicy({Block}),\n    # C2\n)",
    "inside_an_argument": "model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({  # C1\n    Block,  # C2\n}))  # C3",
    "dropped_argument": "model = FSDP(\n    model,\n    limit_all_gathers=True,  # C1\n    use_orig_params=False,  # C2\n)",
    "dropped_last": "model = FSDP(\n    model,\n    # C1\n    limit_all_gathers=True,\n)",
    "value_in_parentheses": "model = (  # C1\n    FSDP(model)  # C2\n    # C3\n)  # C4",
    "right_side_below": "model = (\n    # C1\n    FSDP(model)\n)",
    "annotated": "model: nn.Module = FSDP(model)  # C1",
    "two_targets": "net = model = FSDP(model)  # C1",
    "other_target": "net = FSDP(model)  # C1\nmodel = net",
    "attribute": "class Holder: ...\nholder = Holder()\n# C1\nholder.net = FSDP(model)  # C2\nmodel = holder.net",
    "backslash": "# C1\nmodel = \\\n    FSDP(model)  # C2",
    "semicolon": "torch.manual_seed(0); model = FSDP(model)  # C1",
    "one_line_if": "if True: model = FSDP(model)  # C1",
    "if_and_else": "if dist.is_initialized():  # C1\n    # C2\n    model = FSDP(model)  # C3\n    # C4\nelse:  # C5\n    pass  # C6",
    "conditional": "model = FSDP(model) if dist.is_initialized() else model  # C1",
    "broken_conditional": "model = (\n    FSDP(model)  # C1\n    if dist.is_initialized()  # C2\n    else model  # C3\n)",
    "with_statement": "with torch.device('cpu'):  # C1\n    # C2\n    model = FSDP(model)  # C3",
    "try_statement": "try:  # C1\n    model = FSDP(model)  # C2\nexcept RuntimeError:  # C3\n    raise  # C4\nfinally:  # C5\n    pass",
    "loop": "for _ in range(1):  # C1\n    model = FSDP(model)  # C2\n    # C3",
    "named_policy": "# C1\npolicy = ModuleWrapPolicy({Block})  # C2\n# C3\nmodel = FSDP(model, auto_wrap_policy=policy)  # C4",
    "named_precision": (
        "precision = MixedPrecision(  # C1\n    param_dtype=torch.bfloat16,  # C2\n    # C3\n)  # C4\n"
        "model = FSDP(model, mixed_precision=precision)  # C5"
    ),
    "dictionary": "options = dict(\n    # C1\n    use_orig_params=False,  # C2\n)  # C3\nmodel = FSDP(model, **options)  # C4",
    "strategy": "model = FSDP(\n    model,\n    sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,  # C1\n    device_id=None,  # C2\n)",
    "partial": "wrap = functools.partial(FSDP, use_orig_params=False)  # C1\nmodel = wrap(model)  # C2",
    "call_in_call": "model = FSDP(\n    Net()  # C1\n    .to('cpu'),  # C2\n)  # C3",
    "function": "def wrap(m):  # C1\n    # C2\n    return FSDP(m)  # C3\n\n\n# C4\nmodel = wrap(model)",
    "returned_over_lines": "def wrap(m):\n    return FSDP(  # C1\n        m,  # C2\n    )  # C3\n\n\nmodel = wrap(model)",
    "lambda": "wrap = lambda m: FSDP(m)  # noqa: C1\nmodel = wrap(model)  # C2",
    "list": "models = [\n    FSDP(m)  # C1\n    for m in [model]  # C2\n    # C3\n]\nmodel = models[0]",
    "type_comment": "model = FSDP(model)  # type: ignore[assignment]  # C1",
}

OTHERS = {
    "no_sync": (
        "for step in range(4):\n    # C1\n    context = model.no_sync() if step % 2 else nullcontext()  # C2\n    # C3\n"
        "    with context:  # C4\n        # C5\n        model(x).sum().backward()  # C6\n    # C7\n"
    ),
    "with_no_sync": "# C1\nwith model.no_sync():  # C2\n    # C3\n    model(x).sum().backward()  # C4\n# C5\nmodel(x).sum().backward()",
    "clipping": "# C1\nnorm = model.clip_grad_norm_(  # C2\n    1.0,  # C3\n)  # C4\nprint(norm)",
    "module": "inner = (  # C1\n    model  # C2\n    .module  # C3\n)  # C4\nprint(inner)",
    "guard": "# C1\nif dist.get_rank() == 0:  # C2\n    # C3\n    torch.save(model.state_dict(), 'a')  # C4\n    # C5\n# C6\nprint(1)",
    "early_return": (
        "def save():\n    if dist.get_rank() != 0:  # C1\n        return  # C2\n    # C3\n    torch.save(model.state_dict(), 'a')  # C4\n"
        "    # C5\n\n\nsave()"
    ),
    "state_type": (
        "# C1\nwith FSDP.state_dict_type(  # C2\n    model, 1,  # C3\n):  # C4\n    # C5\n    state = model.state_dict()  # C6\n"
        "print(state)  # C7"
    ),
    "summon": "with FSDP.summon_full_params(model):  # C1\n    # C2\n    model.eval()  # C3",
    "isinstance": "if isinstance(model, FSDP):  # C1\n    # C2\n    print(1)  # C3\nelse:  # C4\n    print(2)  # C5",
    "load": "model.load_state_dict(  # C1\n    torch.load('a'),  # C2\n    strict=False,  # C3\n)  # C4",
}


def comments(text: str) -> list[str]:
    found = (t.string for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type == tokenize.COMMENT)
    return sorted(comment for comment in found if "C" in comment)


def migrated(text: str, *, idioms: bool) -> str:
    source = Source.decode("train.py", text.encode())
    analysis = analyse([extract(source)], {"train.py": source}.__getitem__, Options(idioms=idioms), paths=["train.py"])
    assert not analysis.errors
    return analysis.texts["train.py"]


@pytest.mark.parametrize("idioms", [True, False], ids=["idioms", "fallbacks"])
@pytest.mark.parametrize("name", WRAPS)
def test_comments_of_wraps_survive(name: str, idioms: bool) -> None:
    text = f"{HEAD}model = Net()\n{WRAPS[name]}\nmodel(torch.ones(1, 8)).sum().backward()\n"
    new = migrated(text, idioms=idioms)
    assert "FSDP(" not in new
    assert comments(new) == comments(text)


@pytest.mark.parametrize("idioms", [True, False], ids=["idioms", "fallbacks"])
@pytest.mark.parametrize("name", OTHERS)
def test_comments_of_other_sites_survive(name: str, idioms: bool) -> None:
    body = textwrap.indent(OTHERS[name], "    ")
    text = f"{HEAD}def main(x):\n    model = FSDP(Net())\n{body}\n\n\nmain(torch.ones(1, 8))\n"
    new = migrated(text, idioms=idioms)
    assert comments(new) == comments(text)


def test_comments_of_imported_names_stay_with_them() -> None:
    text = (
        "from torch import nn\nfrom torch.distributed.fsdp import (\n    FullyShardedDataParallel as FSDP,  # C1\n"
        "    MixedPrecision,  # C2\n    StateDictType,  # C3\n)\n\n\n"
        "def f(model, kind):\n    model = FSDP(model)\n    print(MixedPrecision, StateDictType, isinstance(model, FSDP))\n"
    )
    new = migrated(text, idioms=True)
    assert "    MixedPrecision,  # C2\n    StateDictType,  # C3\n" in new
    assert "    FSDPModule,\n" in new


def test_blank_lines_around_comments_of_what_is_removed_stay() -> None:
    text = """import torch
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP, StateDictType


def first(x):
    return x


# ----------
# checkpoints

# whole on the first rank
POLICY = FullStateDictConfig(rank0_only=True, offload_to_cpu=True)


def save(net, path):
    model = FSDP(net)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, POLICY):
        torch.save(model.state_dict(), path)
"""
    source = Source.decode("a.py", text.encode())
    new = analyse([extract(source)], lambda _: source, Options(target_torch=(2, 13)), paths=["a.py"]).texts["a.py"]
    assert "    return x\n\n\n# ----------\n# checkpoints\n\n# whole on the first rank\n\n\ndef save" in new


def test_a_comment_above_several_imports_stays_where_the_first_of_them_goes() -> None:
    text = """def f(net):
    # build models
    from torch.nn.parallel import DistributedDataParallel as DDP
    from os import path

    # the wrapper
    from torch.nn.parallel import DataParallel

    return DDP(net), path, DataParallel
"""
    source = Source.decode("a.py", text.encode())
    new = analyse([extract(source)], lambda _: source, Options(target_torch=(2, 13)), paths=["a.py"]).texts["a.py"]
    assert "    # build models\n    from os import path\n\n    # the wrapper\n" in new
