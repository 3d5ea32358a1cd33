"""FS419: library functions that give modules other parameters: pruning, parametrizations, weight norms."""

from __future__ import annotations

import ast

from ..findings import Form, Level
from ..migration import Migration
from ..queries.file import File
from ..rule import Example, Outcome, Rule
from ..sites import Site


def told(site: Site, migration: Migration) -> Outcome | None:
    """Nothing general is right: fully_shard knows each parameter by its module and name, and goes on with the old one."""
    if site.call is None or migration.is_before_wrap(site) or migration.runs_before_wraps(site.file, site.call):
        return None
    if site.symbol in _PARAMETER:
        return _assigned(site, site.call, migration)
    known = _gets_sharded(site.call, site, migration)
    if known is False:
        return None
    if known is None:
        message = f"whether this is a sharded model is not seen: if it is, {_TAKES_AWAY}"
        return Outcome(message, level=Level.REVIEW, form=Form.NOTE, advice=_ADVICE)
    return Outcome(_TAKES_AWAY, level=Level.MANUAL, form=Form.NOTE, advice=_ADVICE)


def _assigned(site: Site, call: ast.Call, migration: Migration) -> Outcome | None:
    """``model.layer.weight = nn.Parameter(…)``, where that is seen to be a sharded model's."""
    parent = site.file.parents[call]
    targets = parent.targets if isinstance(parent, ast.Assign) else []
    owners = [part for t in targets if isinstance(t, ast.Attribute) for part in ast.walk(t.value) if isinstance(part, ast.expr)]
    if any(isinstance(owner, ast.Name) and owner.id == "self" for owner in owners):
        return None  # who calls the method is asked, by FS308
    bases = [owner for owner in owners if isinstance(owner, ast.Name) and isinstance(owner.ctx, ast.Load)]
    if any(migration.is_fresh(site.file, call, base) and _begins_with(targets, base) for base in bases):
        return None
    if not any(_is_sharded(site.file, owner, migration) for owner in owners):
        return None
    return Outcome(_TAKES_AWAY, level=Level.MANUAL, form=Form.NOTE, advice=_ADVICE)


def _begins_with(targets: list[ast.expr], base: ast.Name) -> bool:
    """Whether what is assigned to lies in what a name stands for: ``layers[0].bias`` in ``layers``."""

    def begin(node: ast.expr) -> ast.expr:
        return begin(node.value) if isinstance(node, (ast.Attribute, ast.Subscript)) else node

    return any(begin(target) is base for target in targets)


_PARAMETER = ("torch.nn.Parameter", "torch.nn.parameter.Parameter")
_TAKES_AWAY = "it takes parameters away from a sharded model and gives it others, which fully_shard does not know"
_ADVICE = "Do it in front of the wrap, on a plain model."


def _gets_sharded(call: ast.Call, site: Site, migration: Migration) -> bool | None:
    """Whether something that is handed in is, or is taken out of, a sharded model; None where no module is seen there."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    parts = [n for one in given for n in ast.walk(one) if isinstance(n, (ast.Name, ast.Attribute, ast.Call))]
    sharding = migration.sharding
    if call.args and migration.is_fresh(site.file, call, call.args[0]):
        return False
    own = [n for n in parts if _is_of_self(site.file, n)]  # of whichever object the method is called on
    if any(_is_sharded(site.file, n, migration) for n in parts if n not in own):
        return True
    if own and _is_called_on_sharded(site.file, call, migration):
        return True
    if any(_is_applied_to_self(site.file, n) for n in own):
        return False
    return False if any(sharding.is_module(value) for n in parts for value in site.file.values(n)) else None


def _is_of_self(file: File, node: ast.expr) -> bool:
    """Whether something is read off ``self``, or is what a loop over such a part comes to."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    if not isinstance(node, ast.Name) or node.id == "self":
        return isinstance(node, ast.Name)
    if _is_applied_to_self(file, node):
        return True
    loops = [a for a in file.ancestors(node) if isinstance(a, ast.For) and node.id in map(ast.unparse, ast.walk(a.target))]
    return any(_is_of_self(file, loop.iter) for loop in loops)


def _is_applied_to_self(file: File, node: ast.expr) -> bool:
    """Whether something is the parameter of a function that a method applies to all modules of its own object."""
    inner = file.function(node)
    if not isinstance(node, ast.Name) or not isinstance(inner, ast.FunctionDef) or file.function(inner) is None:
        return False
    around = ast.walk(file.function(inner) or file.tree)
    applied = any(isinstance(n, ast.Call) and ast.unparse(n) == f"self.apply({inner.name})" for n in around)
    return applied and [a.arg for a in inner.args.args] == [node.id]


def _is_sharded(file: File, node: ast.expr, migration: Migration) -> bool:
    return bool(migration.sharding.of(file, node).wrappers or migration.sharding.of_part(file, node).wrappers)


def _is_called_on_sharded(file: File, node: ast.AST, migration: Migration, depth: int = 0) -> bool:
    """Whether the method around a place is called on a sharded model, or by a method that is."""
    function = file.function(node)
    while function is not None and (outer := file.function(function)) is not None:
        function = outer
    for caller, call in migration.program.callers(file, function) if function is not None else ():
        if isinstance(call.func, ast.Attribute) and migration.sharding.of(caller, call.func.value).wrappers:
            return not migration.runs_before_wraps(caller, call)
        if depth < _DEEPEST and _is_called_on_sharded(caller, call, migration, depth + 1):
            return True
    return False


_DEEPEST = 3
_NORMS = ("weight_norm", "spectral_norm", "remove_weight_norm", "remove_spectral_norm")

RULE = Rule(
    id="FS419",
    title="parameters of modules rebuilt",
    symbols=("torch.nn.utils.prune.*", "torch.nn.utils.parametrize.*", "torch.nn.utils.parametrizations.*",
             *(f"torch.nn.utils.{name}" for name in _NORMS), *_PARAMETER),
    roles=("call",),
    why="Under DDP a module could be pruned and wrapped anew; fully_shard manages parameters by their modules and names.",
    fallback=told,
    examples=(
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "from torch.nn.utils import prune\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = DDP(net, **options)\n"
                '    prune.l1_unstructured(model.module.layer, "weight", amount=0.3)\n'
                "    return model\n"
            ),
            after=(
                "from torch.nn.utils import prune\n"
                "\n"
                "from fsdp2_helpers import shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_ddp(net, **options)\n"
                '    prune.l1_unstructured(model.layer, "weight", amount=0.3)\n'
                "    return model\n"
            ),
            level=Level.MANUAL,
        ),
    ),
)  # fmt: skip
