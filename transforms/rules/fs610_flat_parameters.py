"""FS610: handles and flat parameters of FSDP1."""

from __future__ import annotations

import ast

from ..facts.symbols import FSDP1
from ..findings import Form, Level
from ..migration import Migration
from ..queries.answers import Answer
from ..queries.file import File
from ..queries.narrowed import wrapper_asked_for
from ..rewrites.changes import Change, remove_statement
from ..rewrites.helper_calls import around, attribute_as_call, function_instead
from ..rule import Example, Outcome, Rule
from ..sites import Site
from .fs607_private_symbols import RESHARD

_MARK = "_fsdp_flattened"
_TRAVERSAL = "torch.distributed.fsdp._traversal_utils"
_OF_FLAT_PARAMETERS = frozenset({"_fqns", "_param_infos", "_shard_param_infos"})
_GET_HANDLES = (f"{_TRAVERSAL}._get_fsdp_handles", "torch.distributed.fsdp._common_utils._get_fsdp_handles")


def idiom(site: Site, migration: Migration) -> Outcome | None:
    """What needs no helper."""
    if (unused := _only_for_resharding(site)) is not None:
        return Outcome("a unit is resharded without its handle", [remove_statement(site.file, unused)])
    return itself(site, migration)


def itself(site: Site, migration: Migration) -> Outcome | None:
    """``handle.flat_param`` in a loop over what ``_get_fsdp_handles`` gave: the parameter itself."""
    if site.member != "flat_param" or site.role != "read" or not isinstance(site.receiver, ast.Name):
        return None
    if not _comes_from_handles(site.file, site.receiver):
        return None
    assert isinstance(site.node, ast.Attribute)
    return Outcome(_MESSAGE, [attribute_as_call(site.file, site.node, "{receiver}")])


def by_helper(site: Site, migration: Migration) -> Outcome | None:
    """Parameters in the place of handles; a handle of FSDP1 gives its flat parameter as before."""
    if site.member == _MARK:
        return _asked_of_either(site, migration)
    if site.sharding is not None and site.member != "flat_param" and site.sharding.answer is Answer.NO:
        if site.receiver is None or wrapper_asked_for(site.file, site.node, site.receiver) != "FSDP1":
            return None  # else a part of a model, of which a test just said that it is a unit
    if site.symbol in _GET_HANDLES:
        name = migration.helper(site, "handle_parameters")
        change = function_instead(site.file, site.node, site.call, name)
        return Outcome(_MESSAGE, [change])
    if isinstance(site.receiver, ast.Attribute) and site.receiver.attr == "_handle":
        return None  # the handle itself is told of
    asked = site.file.parents[site.node]
    if site.member == "_handle" and isinstance(asked, ast.Attribute) and asked.attr == "uses_sharded_strategy":
        name, unit = migration.torch(site, "torch.distributed.fsdp.FSDPModule"), ast.unparse(site.receiver)  # type: ignore[arg-type]
        return Outcome("every unit is sharded: that it is one is asked",
                       [around(site.file, asked, f"(isinstance({unit}, {name}) or {{it}})")])  # fmt: skip
    if site.member == "_handle" and (parent := _around_handle(site)) is not None:
        if isinstance(parent, ast.Call):
            return Outcome("a unit is resharded without its handle", level=Level.OK)
        return Outcome("every unit has parameters: that it is one is asked", [_is_unit(site, migration, parent)])
    if _is_own(site) or (site.member in _OF_FLAT_PARAMETERS and _is_told_of(site, migration)):
        return None
    if site.role != "read" or site.member not in ("_handles", "flat_param"):
        message = "a sharded module has no flat parameter: reaching this raises AttributeError"
        advice = "Work on module.parameters(): each is a DTensor of its own name and shape."
        return Outcome(message, level=Level.MANUAL, form=Form.NOTE, advice=advice)
    helper = "unit_handles" if site.member == "_handles" else "flat_parameter"
    assert isinstance(site.node, ast.Attribute)
    return Outcome(_MESSAGE, [attribute_as_call(site.file, site.node, migration.helper(site, helper) + "({receiver})")])


def _asked_of_either(site: Site, migration: Migration) -> Outcome | None:
    """The mark that FSDP1 set on parameters is asked for to know whether they are sharded, so that ranks add something up."""
    if site.role == "store" or site.receiver is None:
        return None
    sharded = f"isinstance({ast.unparse(site.receiver)}, {migration.torch(site, 'torch.distributed.tensor.DTensor')})"
    assert isinstance(site.node, ast.expr)
    return Outcome("parameters of FSDP2 have no such mark: they are DTensors",
                   [around(site.file, site.node, f"({sharded} or {{it}})")])  # fmt: skip


def _only_for_resharding(site: Site) -> ast.stmt | None:
    """The statement that names a handle for calls of ``_reshard`` alone, which need none any more."""
    assign = site.file.parents[site.node]
    if site.member not in ("_handle", "_handles") or not isinstance(assign, ast.Assign) or assign.value is not site.node:
        return None
    if len(assign.targets) != 1 or not isinstance(assign.targets[0], ast.Name):
        return None
    scope, name = site.file.function(assign) or site.file.tree, assign.targets[0].id
    loads = [n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
    calls = [site.file.parents[load] for load in loads]
    unneeded = all(isinstance(c, ast.Call) and site.file.external(c.func) == RESHARD for c in calls)
    return assign if loads and unneeded else None


def _around_handle(site: Site) -> ast.Compare | ast.Call | None:
    """What a handle is read for: to be tested for None, or to be given to ``_reshard``, which needs none any more."""
    parent = site.file.parents[site.node]
    if isinstance(parent, ast.Call) and site.file.external(parent.func) == RESHARD:
        return parent
    is_test = isinstance(parent, ast.Compare) and isinstance(parent.ops[0], ast.Is | ast.IsNot) and parent.left is site.node
    return parent if is_test and isinstance(parent, ast.Compare) else None


def _is_unit(site: Site, migration: Migration, test: ast.Compare) -> Change:
    name = migration.torch(site, "torch.distributed.fsdp.FSDPModule")
    unit = ast.unparse(site.receiver)  # type: ignore[arg-type]
    if isinstance(test.ops[0], ast.IsNot):
        return around(site.file, test, f"(isinstance({unit}, {name}) or {{it}})")
    return around(site.file, test, f"(not isinstance({unit}, {name}) and {{it}})")


def _is_own(site: Site) -> bool:
    """Whether ``self._flat_param`` is an attribute that the class itself assigns."""
    around = site.file.enclosing_class(site.node)
    if around is None or not isinstance(site.receiver, ast.Name):
        return False
    stores = (n for n in ast.walk(around) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store))
    return any(n.attr == site.member and ast.dump(n.value) == ast.dump(site.receiver) for n in stores)


def _is_told_of(site: Site, migration: Migration) -> bool:
    """Whether a read of the flat parameter in the same function raises before this is reached."""
    function = site.file.function(site.node)
    return any(
        other.member in ("_flat_param", "_handle") and site.file.function(other.node) is function
        for other in migration.sites[site.file.path]
    )


def _comes_from_handles(file: File, name: ast.Name) -> bool:
    """Whether a name is the variable of a loop, with ``zip`` or without, over results of ``_get_fsdp_handles``."""
    for outer in file.ancestors(name):
        if isinstance(outer, ast.For):
            loops = [(outer.target, outer.iter)]
        elif isinstance(outer, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            loops = [(g.target, g.iter) for g in outer.generators]
        else:
            continue
        for target, iterable in loops:
            pairs = [(target, iterable)]
            zipped = isinstance(iterable, ast.Call) and file.external(iterable.func) == "builtins.zip"
            if isinstance(target, ast.Tuple) and isinstance(iterable, ast.Call) and zipped:
                pairs = list(zip(target.elts, iterable.args, strict=False))
            for own, given in pairs:
                if isinstance(own, ast.Name) and own.id == name.id:
                    return _are_handles(file, given)
    return False


def _are_handles(file: File, node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return file.external(node.func) in _GET_HANDLES
    if not isinstance(node, ast.Name):
        return False
    scope = file.function(node) or file.tree
    stores = [s for s in ast.walk(scope) if isinstance(s, ast.Assign) and any(ast.unparse(t) == node.id for t in s.targets)]
    return bool(stores) and all(isinstance(s.value, ast.Call) and _are_handles(file, s.value) for s in stores)


_MESSAGE = "models of FSDP2 have no flat parameters: each sharded parameter stands for itself"

RULE = Rule(
    id="FS610",
    title="handles and flat parameters",
    symbols=(
        *(f"{FSDP1}.{name}" for name in ("_handles", "_handle", "flat_param", "_flat_param", *sorted(_OF_FLAT_PARAMETERS))),
        f"{FSDP1}.{_MARK}",
        *_GET_HANDLES,
    ),
    roles=("call", "read", "store", "value", "dynamic"),
    why="FSDP1 laid the parameters of a unit into one flat tensor behind a handle; fully_shard keeps them apart.",
    idiom=idiom,
    fallback=by_helper,
    examples=(
        Example(
            before=(
                "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
                "from torch.distributed.fsdp._traversal_utils import _get_fsdp_handles\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = FSDP(net, **options)\n"
                "    for handle in _get_fsdp_handles(model):\n"
                "        handle.flat_param.data.mul_(0.9)\n"
            ),
            after=(
                "from fsdp2_helpers import handle_parameters, shard_like_fsdp1\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_fsdp1(net, **options)\n"
                "    for handle in handle_parameters(model):\n"
                "        handle.data.mul_(0.9)\n"
            ),
            level=Level.REVIEW,
        ),
        Example(
            before=(
                "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = FSDP(net, **options)\n"
                "    for part in FSDP.fsdp_modules(model):\n"
                "        flat = part._flat_param\n"
                "        print(flat._fqns)\n"
            ),
            after=(
                "from fsdp2_helpers import shard_like_fsdp1, units\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_fsdp1(net, **options)\n"
                "    for part in units(model):\n"
                "        flat = part._flat_param\n"
                "        print(flat._fqns)\n"
            ),
            level=Level.MANUAL,
        ),
    ),
)
