"""``_fsdp_wrapped_module.`` and ``module.`` in parameter names."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.symbols import FSDP1
from ..analysis.values import Derived
from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..text.generated import removed
from ..training.unwrapping import has_wrapper_of_its_own
from ..view import FileView

_INNER = "_fsdp_wrapped_module"
_FLAT = ("_fpw_module", "_flat_param", "flat_param_")
_WHY = "fully_shard changes no names"
_CLEANING = "torch.distributed.fsdp._common_utils.clean_tensor_name"
SYMBOL = f"{FSDP1}.{_INNER}"


def find(migration: Migration) -> Iterator[Site]:
    """Strings with a name that only FSDP1 puts into parameter names, and "module." where names are taken apart."""
    own = has_wrapper_of_its_own(migration)
    for view in migration.views():
        documentation = _documentation(view)
        for node in view.nodes(ast.Constant):
            if not isinstance(node.value, str) or node in documentation:
                continue
            inner = _INNER in node.value or any(name in node.value for name in _FLAT)
            if (inner and not own and len(node.value) < 80) or (node.value == "module." and migration.groups.all):
                yield Site(view, node, SYMBOL if inner else "module.", "hazard", None)


def check(site: Site, migration: Migration) -> Outcome:
    view, node = site.view, site.node
    if site.symbol.startswith(_CLEANING):
        return Outcome(Level.OK, "right as it is: names have nothing of FSDP1 to take out, those of checkpointed modules may")
    assert isinstance(node, ast.Constant)
    if site.symbol == "module.":
        return _module_prefix(view, node)
    call = _taking_out(view, node)
    if call is not None and node.value in (_INNER, _INNER + "."):
        assert isinstance(call.func, ast.Attribute)
        if not _is_name_of_model(migration, view, call.func.value):
            return Outcome(Level.OK, "names of an FSDP2 model have nothing to take out; files of the old program may have")
        outcome = Outcome(Level.SAFE, "names of an FSDP2 model have nothing to take out")
        statement = view.statement(call)
        targets = statement.targets if isinstance(statement, ast.Assign) and statement.value is call else []
        if [view.text(target) for target in targets] == [view.text(call.func.value)]:
            outcome.patches.append(removed(view, statement, _WHY))
        else:
            outcome.patches.append(view.replace(call, (view.keep(call.func.value),), _WHY))
        return outcome
    return Outcome(
        Level.REVIEW,
        f"names of an FSDP2 model do not hold {_INNER}: what looks for it finds nothing",
        "Code that takes it out of names may go; code that needs it has to use the plain names.",
    )


def _is_name_of_model(migration: Migration, view: FileView, name: ast.expr) -> bool:
    """Whether a name surely comes from the parameters or modules of a model, not from a file."""
    values = [value for value in view.values(name) if isinstance(value, Derived) and value.kind in ("parameters", "modules")]
    return bool(values) and migration.groups.of(values) is not None


def _module_prefix(view: FileView, node: ast.Constant) -> Outcome:
    parent = view.parents[node]
    if isinstance(parent, (ast.BinOp, ast.JoinedStr)):
        return Outcome(
            Level.REVIEW,
            'names of an FSDP2 model do not start with "module."',
            "If the result is looked up among names of the model, leave the prefix out; for old files it stays.",
        )
    return Outcome(Level.OK, 'names of an FSDP2 model do not start with "module."; files of the old program may')


def _taking_out(view: FileView, node: ast.Constant) -> ast.Call | None:
    """``name.replace("…", "")`` around a string."""
    call = view.parents[node]
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "replace":
        return None
    plain = len(call.args) == 2 and call.args[0] is node and not call.keywords
    return call if plain and isinstance(call.args[1], ast.Constant) and call.args[1].value == "" else None


def _documentation(view: FileView) -> set[ast.AST]:
    """Strings that are statements: docstrings."""
    return {node.value for node in view.nodes(ast.Expr)}


_HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(build())\n"
_SHARD = "from torch.distributed.fsdp import fully_shard\n\nmodel = build()\nfully_shard(model)\n"

_CLEANED = "from torch.distributed.fsdp._common_utils import clean_tensor_name\n"
_NAMES = "names = [clean_tensor_name(name) for name, _ in model.named_parameters()]\n"

RULE = Rule(
    id="FS607",
    title="Prefixes of the wrappers in parameter names",
    why=(
        "DDP puts module. before every name, FSDP1 _fsdp_wrapped_module. into it; fully_shard changes no name. Taking "
        "the prefix out does nothing any more, and a lookup with it fails. Files of the old program keep theirs."
    ),
    symbols=(SYMBOL + ".prefix", _CLEANING),
    roles=("hazard", "call", "reference"),
    check=check,
    find=find,
    proof=("unwrap_helper",),
    examples=(
        Example(
            _HEAD + 'names = [n.replace("_fsdp_wrapped_module.", "") for n, _ in model.named_parameters()]\n',
            _SHARD + "names = [n for n, _ in model.named_parameters()]\n",
        ),
        Example(
            _HEAD + 'for name, _ in model.named_parameters():\n    name = name.replace("_fsdp_wrapped_module.", "")\n'
            "    print(name)\n",
            _SHARD + "for name, _ in model.named_parameters():\n    print(name)\n",
        ),
        Example(
            _CLEANED + _HEAD + _NAMES,
            _CLEANED + _SHARD + _NAMES,
            Level.OK,
            "modules that are checkpointed still have a name of their own in the middle, which the function takes out",
        ),
    ),
)
