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
    known = _gets_sharded(site.call, site, migration)
    if known is False:
        return None
    message = "it takes parameters away from a sharded model and gives it others, which fully_shard does not know"
    if known is None:
        return Outcome(f"whether this is a sharded model is not seen: if it is, {message}", level=Level.REVIEW, form=Form.NOTE,
                       advice=_ADVICE)  # fmt: skip
    return Outcome(message, level=Level.MANUAL, form=Form.NOTE, advice=_ADVICE)


_ADVICE = "Do it in front of the wrap, on a plain model."


def _gets_sharded(call: ast.Call, site: Site, migration: Migration) -> bool | None:
    """Whether something that is handed in is, or is taken out of, a sharded model; None where no module is seen there."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    parts = [n for one in given for n in ast.walk(one) if isinstance(n, (ast.Name, ast.Attribute, ast.Call))]
    sharding = migration.sharding
    if any(sharding.of(site.file, n).wrappers or sharding.of_part(site.file, n).wrappers for n in parts):
        return True
    if any(isinstance(n, ast.Name) and n.id == "self" for n in parts) and _is_called_on_sharded(site.file, call, migration):
        return True
    return False if any(sharding.is_module(value) for n in parts for value in site.file.values(n)) else None


def _is_called_on_sharded(file: File, node: ast.AST, migration: Migration, depth: int = 0) -> bool:
    """Whether the method around a place is called on a sharded model, or by a method that is."""
    function = file.function(node)
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
             *(f"torch.nn.utils.{name}" for name in _NORMS)),
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
