"""Parameters without dimensions get one: ``nn.Parameter(torch.ones([]))``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sharding.scalar_uses import uses_of
from ..sharding.scalars import Scalar, is_chosen, scalars, scalars_of_unseen, with_dimension
from ..sites import Site
from ..text.definitions import defined_before
from ..text.patches import Patch
from ..training.local_reads import tensor_values
from ..training.shape_tests import tells_scalars
from ..view import FileView

_SYMBOL = "torch.nn.Parameter"
_MAYBE = "torch.nn.Parameter(of_unseen)"
_WHY = "files from before the parameter had a dimension still load"
_ELEMENT = "what computes with the parameter takes its element"
_WAY_OUT = (
    "Give it one element and one dimension (torch.ones(1)), take the element where it is computed with (.squeeze(0)), and let "
    "a register_load_state_dict_pre_hook reshape what older files hold."
)
_HOOK = "add_dimension"


def find(migration: Migration) -> Iterator[Site]:
    """The definitions in models that DDP wraps or may wrap."""
    for scalar in scalars(migration):
        yield Site(scalar.view, scalar.call, _SYMBOL, "hazard", scalar.group)
    for scalar in scalars_of_unseen(migration):
        yield Site(scalar.view, scalar.call, _MAYBE, "hazard", scalar.group)


def check(site: Site, migration: Migration) -> Outcome:
    if site.symbol == _MAYBE:
        return Outcome(
            Level.MANUAL,
            "where DDP wrapped a model of this class, fully_shard raises ValueError now: it refuses parameters without "
            "dimensions",
            _WAY_OUT,
        )
    scalar = next(found for found in scalars(migration) if found.call is site.node and found.group is site.group)
    if scalar.name is None:
        return _manual("it is not assigned to an attribute of self, so what reads it is not known")
    patches = with_dimension(scalar)
    if patches is None:
        return _manual("its shape may be another one as well, or serves something else")
    told = _told_apart(migration, scalar)
    if told:
        return _manual(f"{told} tells parameters without dimensions from those with one, and would take the other side for it")
    uses = uses_of(migration, scalar)
    if uses.unclear:
        places = ", ".join(sorted({f"{at.path}:{at.line(node)}" for at, node in uses.unclear}))
        return _manual(f"what {places} does with it may depend on its shape")
    outcome = Outcome(
        Level.REVIEW,
        f"fully_shard refuses parameters without dimensions: {scalar.name} gets one of size 1, and what computes with it "
        "takes its element, so that results keep their shapes and types; older files load through a hook, and torch "
        "itself loads new files into the old parameter",
        "Other programs that read the parameter out of a file by hand find one element there; old directories of "
        "torch.distributed.checkpoint are refused for its shape.",
    )
    if is_chosen(scalar):
        outcome.message += "; where its shape was chosen, both choices are now the same"
    outcome.patches.extend(patches)
    for at, node in uses.computed:
        outcome.patches.append(at.replace(node, (at.keep(node), ".squeeze(0)"), _ELEMENT))
    _register(migration, scalar, outcome)
    return outcome


def _manual(what: str) -> Outcome:
    return Outcome(
        Level.MANUAL,
        f"fully_shard refuses parameters without dimensions, and this one is left alone: {what}",
        f"{_WAY_OUT[:-1]}, and run again.",
        holds=True,
    )


def _told_apart(migration: Migration, scalar: Scalar) -> str:
    """A place that treats the model's parameters by whether they have a dimension at all."""
    for view in migration.views():
        for test in view.nodes(ast.Compare):
            tensor = tells_scalars(test)
            if tensor is not None and tensor_values(migration, view, tensor)[0] is scalar.group:
                return f"{view.path}:{view.line(test)}"
    return ""


# --- older files ------------------------------------------------------------------------------------------------


def _register(migration: Migration, scalar: Scalar, outcome: Outcome) -> None:
    """Adds the hook of the class, and the function behind it, which the definitions of a file share."""
    view = scalar.view
    beside = [other for other in scalars(migration) if other.view is view]
    home = _imported_from(migration, scalar)
    outcome.patches.append(_import(view, home) if home is not None else _define(migration, view, beside, outcome))
    method = view.function(scalar.call)
    last = max((o.call for o in beside if o.owner is scalar.owner and view.function(o.call) is method), key=view.line)
    assert isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef))
    statement = next(part for part in method.body if last in ast.walk(part))
    line = f"{view.indent(statement)}self.register_load_state_dict_pre_hook({_HOOK})\n"
    outcome.patches.append(view.insert_after(statement, line, _WHY))


def _define(migration: Migration, view: FileView, scalars_here: list[Scalar], outcome: Outcome) -> Patch:
    first = min((_top_level(view, scalar.owner) for scalar in scalars_here), key=view.line)
    is_tensor = migration.use(outcome, view, "torch.is_tensor", first)
    full_like = migration.use(outcome, view, "torch.full_like", first)
    function = (
        f"def {_HOOK}(module, state_dict, prefix, *_):\n"
        '    """Gives scalars of older checkpoints the dimension that their parameters have now."""\n'
        "    for name, parameter in module.named_parameters(recurse=False):\n"
        "        value = state_dict.get(prefix + name)\n"
        f"        if {is_tensor}(value) and value.ndim == 0 and parameter.ndim == 1:\n"
        f"            state_dict[prefix + name] = {full_like}(parameter, value.item(), device=value.device)\n"
    )
    return defined_before(view, first, (function,), _WHY)


def _imported_from(migration: Migration, scalar: Scalar) -> ast.ImportFrom | None:
    """An import of names from another file that has to define the hook for parameters of its own."""
    views = {other.view.index: other.view for other in scalars(migration) if other.group is scalar.group}
    defining = {index for index, view in views.items() if not _imports(migration, view, views.keys() - {index})}
    return next(iter(_imports(migration, scalar.view, defining - {scalar.view.index})), None)


def _imports(migration: Migration, view: FileView, files: set[int]) -> list[ast.ImportFrom]:
    """The imports of names at the top of a file from any of these files."""
    find = migration.program.flow.modules.find
    statements = [statement for statement in view.tree.body if isinstance(statement, ast.ImportFrom)]
    return [s for s in statements if find(view.index, "." * s.level + (s.module or "")) in files and s.names[0].name != "*"]


def _import(view: FileView, statement: ast.ImportFrom) -> Patch:
    end = view.source.span(statement.names[-1])[1]
    return Patch(view.path, end, end, (f", {_HOOK}",), _WHY)


def _top_level(view: FileView, node: ast.AST) -> ast.stmt:
    """The statement of the module that a node stands in."""
    around = [node, *view.ancestors(node)]
    statement = around[around.index(view.tree) - 1]
    assert isinstance(statement, ast.stmt)
    return statement


_BEFORE = """\
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Linear(8, 8)
        self.text = nn.Linear(8, 8)
        self.logit_scale = nn.Parameter(torch.ones([]) * 2.66)

    def forward(self, images, texts):
        return self.logit_scale.exp() * self.image(images) @ self.text(texts).T


torch.cuda.set_device(local_rank)
model = Towers().to(device)
model = DDP(model, device_ids=[local_rank])
optimizer = torch.optim.AdamW(model.parameters())
"""
_AFTER = '''\
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import fully_shard


def add_dimension(module, state_dict, prefix, *_):
    """Gives scalars of older checkpoints the dimension that their parameters have now."""
    for name, parameter in module.named_parameters(recurse=False):
        value = state_dict.get(prefix + name)
        if torch.is_tensor(value) and value.ndim == 0 and parameter.ndim == 1:
            state_dict[prefix + name] = torch.full_like(parameter, value.item(), device=value.device)


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Linear(8, 8)
        self.text = nn.Linear(8, 8)
        self.logit_scale = nn.Parameter(torch.ones(1) * 2.66)
        self.register_load_state_dict_pre_hook(add_dimension)

    def forward(self, images, texts):
        return self.logit_scale.squeeze(0).exp() * self.image(images) @ self.text(texts).T


torch.cuda.set_device(local_rank)
model = Towers().to(device)
for tensor in [*model.parameters(), *model.buffers()]:
    dist.broadcast(tensor.detach(), src=0)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
'''
_TOLD = _BEFORE.replace("model.parameters()", "[p for p in model.parameters() if p.ndim == 1]")
_UNSEEN = _BEFORE.replace("Towers().to(device)", "registry[name]().to(device)").replace(
    "device_ids=[local_rank])", "device_ids=[local_rank], broadcast_buffers=False)"
)
_UNSEEN_AFTER = f"{_UNSEEN[:_UNSEEN.index('model = DDP')]}{_AFTER[_AFTER.index('for tensor in'):]}".replace(
    "torch.nn.parallel import DistributedDataParallel as DDP", "torch.distributed.fsdp import fully_shard"
)

RULE = Rule(
    id="FS123",
    title="Parameters without dimensions get one",
    why=(
        "fully_shard shards along a dimension and raises for a parameter that has none. With one dimension of size 1 two "
        "towers with a clamped temperature trained bitwise as before, where what computes with it takes its element: "
        "left at one dimension it takes part in type promotion, and under autocast losses were off by 1e-2 after 8 steps. "
        "load_state_dict refuses a scalar for such a parameter, so a hook reshapes it; the other way round torch does it."
    ),
    symbols=(_SYMBOL, _MAYBE),
    roles=("hazard",),
    check=check,
    find=find,
    sources=(
        "torch/distributed/fsdp/_fully_shard/_fsdp_init.py: _validate_module",
        "torch/nn/modules/module.py: Module._load_from_state_dict",
    ),
    proof=("two_towers",),
    examples=(
        Example(_BEFORE, _AFTER, Level.REVIEW),
        Example(_UNSEEN, _UNSEEN_AFTER, Level.MANUAL, "which model it is, is not seen: it may be of this class, and then raises"),
        Example(_TOLD, _TOLD, Level.MANUAL, "whether a parameter decays would change with its shape"),
    ),
)
