"""FS601: `.module` of a wrapped model."""

from __future__ import annotations

import ast

import libcst as cst

from ..facts.symbols import DDP, WRAPPERS
from ..findings import Level
from ..flow.values import UNKNOWN, ClassValue, Constant, External, Opaque
from ..migration import Migration
from ..queries.already_bound import is_already_bound
from ..queries.answers import Answer
from ..queries.copied_models import copies_behind, copies_model, copies_wrapper
from ..queries.file import File
from ..queries.narrowed import asks_for_other_class
from ..queries.other_wrappers import makes_other_wrappers
from ..queries.own_attributes import class_stores, has_own_module, is_asked_for_more, may_store_module, stores_module
from ..queries.past_ddp import past_ddp
from ..queries.repeated_unwrapping import deciding_test, ends_by_exception, recursive_call
from ..queries.run_models import runs
from ..queries.unwrapping import comes_unwrapped, unwrapping_choice
from ..queries.wrapper_classes import holds_module
from ..queries.wrapper_tests import asked_about
from ..rewrites.changes import Change, remove_statement, replace
from ..rewrites.helper_calls import around, attribute_as_call
from ..rewrites.templates import expression, with_argument
from ..rule import Example, Outcome, Rule
from ..sites import Site


def the_model_itself(site: Site, migration: Migration) -> Outcome | None:
    """A model that is always sharded is its own module."""
    assert site.sharding is not None and site.receiver is not None
    if holds_module(site.file, site.receiver):
        return None
    node = _attribute(site)
    choice = site.file.parents[node]
    others = makes_other_wrappers(migration.program) or may_store_module(site.file, site.receiver)  # which is another module
    others = others or (isinstance(choice, ast.IfExp) and _asks_for_attribute(choice.test))
    others = others and not migration.is_sharded_here(site)
    if isinstance(choice, ast.IfExp) and (isinstance(choice.test, ast.Name) or asked_about(site.file, choice.test) is not None):
        others = others or unwrapping_choice(site.file, node) is not None  # a variable or function that stays is asked
    if isinstance(choice, ast.IfExp) and _is_same_but_for_module(site, choice) and migration.options.wraps and not others:
        change = replace(site.file, choice, lambda new: new.orelse if choice.body is node else new.body)  # type: ignore[attr-defined]
        return _told(site, migration, choice, "wrapped or not, the model is its own module", change)
    if site.sharding.in_place or _is_own(site) or not (migration.is_sharded_here(site) or _was_always_wrapped(site, migration)):
        return None
    if unwrapping_choice(site.file, node) is not None or _ends_with_module(site) or _may_be_in_data_parallel(site):
        return None
    if migration.compiled_models.may_hold(site.file.values(site.receiver)):
        return None  # what is compiled holds the model, and has other keys
    change = attribute_as_call(site.file, node, "{receiver}")
    assign = site.file.parents[node]
    if isinstance(assign, ast.Assign) and [ast.unparse(target) for target in assign.targets] == [ast.unparse(site.receiver)]:
        change = remove_statement(site.file, assign)  # `model = model`
    elif isinstance(assign, ast.Assign) and is_already_bound(site.file, assign) and not _has_comment(site.file, assign):
        change = remove_statement(site.file, assign)
    return _told(site, migration, node, "there is no wrapper to look into: the model is its own module", change)


def _has_comment(file: File, statement: ast.stmt) -> bool:
    lines = file.source.text.splitlines()
    return "#" in lines[statement.lineno - 1] or lines[statement.lineno - 2].lstrip().startswith("#")


def _may_be_in_data_parallel(site: Site) -> bool:
    """Whether DataParallel comes here too, as on one machine without ranks, or apex's wrapper: they keep their ``.module``."""
    assert site.receiver is not None
    return any(isinstance(v, Opaque) and v.name.endswith("DataParallel") for v in site.file.values(site.receiver))


def _was_always_wrapped(site: Site, migration: Migration) -> bool:
    """Whether nothing but sharded models comes, in their wrappers or before them: ``.module`` of a plain one had raised."""
    assert site.receiver is not None
    values = [v for v in site.file.values(site.receiver) if not (isinstance(v, Constant) and v.value is None)]
    if not values or not migration.options.wraps or migration.sharding.of(site.file, site.receiver).answer is Answer.NO:
        return False
    if not migration.observed.fails_for_plain(site.file, _attribute(site)) or may_store_module(site.file, site.receiver):
        return False
    is_unsure = any(isinstance(v, Opaque) and v.name == UNKNOWN for v in values)
    return not is_unsure and all(migration.sharding.of_values([v]).wrappers for v in values)


def _is_same_but_for_module(site: Site, choice: ast.IfExp) -> bool:
    """Whether a choice is between ``x.module`` and ``x``, and ``x`` may be sharded."""
    assert site.receiver is not None and site.sharding is not None
    node = _attribute(site)
    if site.sharding.answer is Answer.NO or node not in (choice.body, choice.orelse):
        return False
    other = choice.orelse if choice.body is node else choice.body
    return ast.dump(other) == ast.dump(site.receiver) and bool(site.sharding.wrappers)


def _asks_for_attribute(test: ast.expr) -> bool:
    """Whether ``hasattr(x, "module")`` is asked, which objects that are no models may answer as wrappers did."""
    return any(isinstance(n, ast.Name) and n.id == "hasattr" for n in ast.walk(test))


def unwrapped(site: Site, migration: Migration) -> Outcome | None:
    """The model itself if it is sharded, else its attribute."""
    assert site.sharding is not None and site.receiver is not None
    node = _attribute(site)
    if _is_of_copy(site, migration):
        model = ast.unparse(site.receiver)
        change = attribute_as_call(site.file, node, f'getattr({{receiver}}, "module", {model})')
        return Outcome("a copy of a sharded model is the plain one: there is no wrapper around it", [change])
    if site.sharding.answer is Answer.NO or _is_own(site) or has_own_module(site.file, site.receiver):
        return None
    if asks_for_other_class(site.file, node, site.receiver):
        return None
    if may_store_module(site.file, site.receiver) and comes_unwrapped(migration.sharding, site.file, site.receiver, surely=True):
        return None  # the wrapper is off: the attribute is that of a class
    if not site.sharding.wrappers and (stores_module(site.file, site.receiver) or is_asked_for_more(site.file, site.receiver)):
        return None
    if unwrapping_choice(site.file, node) is not None:
        return Outcome("the branch without `.module` is taken for models of FSDP2, which is right", level=Level.OK)
    if ends_by_exception(site.file, node):
        return Outcome("a sharded model has no `.module`: the AttributeError that is caught here is right", level=Level.OK)
    name = migration.helper(site, "unwrap")
    changes = [replace(site.file, node, lambda old: _unwrapped(old, name)), *_stops_at_itself(site, name)]
    return _told(site, migration, node, "a sharded model is its own module; anything else keeps its attribute", *changes)


def _unwrapped(node: cst.CSTNode, unwrap: str) -> cst.CSTNode:
    """``unwrap(x)`` for ``x.module``; ``unwrap(x, 2)`` for ``x.module.module``: a sharded model is its own module once."""
    assert isinstance(node, cst.Attribute)
    inner = node.value
    if isinstance(inner, cst.Call) and isinstance(inner.func, cst.Name) and inner.func.value == unwrap and len(inner.args) == 1:
        new: cst.BaseExpression = with_argument(inner, cst.Arg(cst.Integer("2")))
    else:
        new = expression(f"{unwrap}({{receiver}})", receiver=inner)
    return new.with_changes(lpar=[*node.lpar, *new.lpar], rpar=[*new.rpar, *node.rpar])


def _is_of_copy(site: Site, migration: Migration) -> bool:
    """Whether a model is a copy of one that may be sharded, and so a plain one: of DDP's wrapper a copy was a wrapper too."""
    assert site.receiver is not None
    before, fresh = migration.runs_before_wraps, migration.is_fresh
    copies = copies_behind(site.file, site.receiver)
    copied = [(file, call) for file, call in copies if copies_model(migration.sharding, file, call, before, fresh)]
    if all(copies_wrapper(migration.sharding, file, call) for file, call in copied):
        return False
    return unwrapping_choice(site.file, site.node) is None


def _ends_with_module(site: Site) -> bool:
    """Whether code goes on unwrapping until nothing is left to unwrap."""
    node = _attribute(site)
    tests = deciding_test(site.file, node), recursive_call(site.file, node)
    return any(test is not None for test in tests) or ends_by_exception(site.file, node)


def _stops_at_itself(site: Site, unwrap: str) -> list[Change]:
    """The change that ends repeated unwrapping at a model that is its own module."""
    node = _attribute(site)
    model = ast.unparse(node.value)
    test, call = deciding_test(site.file, node), recursive_call(site.file, node)
    if test is not None:
        return [around(site.file, test, f"{{it}} and {unwrap}({model}) is not {model}")]
    return [around(site.file, call, f"{{it}} if {unwrap}({model}) is not {model} else {model}")] if call is not None else []


def _told(site: Site, migration: Migration, model: ast.expr, message: str, *changes: Change) -> Outcome:
    """The rewrite; a forward past DDP used each rank's own buffers, and the wrapper's forward those of the first rank."""
    assert site.sharding is not None
    kinds = site.sharding.wrappers or migration.wrapper_kinds
    if "ddp" not in kinds or not migration.follows_buffers or all(
        past_ddp(file, migration.sharding, call) or migration.is_held(file, call) for file, call in runs(site.file, model)
    ):
        return Outcome(message, list(changes))
    return Outcome("past DDP a forward used each rank's own buffers; now the first rank's are sent before it, as in DDP's own",
                   list(changes), Level.REVIEW, advice="With SyncBatchNorm, or equal buffers, nothing differs; else results of "
                   "evaluation on other ranks are those of the first rank's statistics.")  # fmt: skip


def _attribute(site: Site) -> ast.Attribute:
    """``model.module``; the site of ``model.module(x)`` is the whole call."""
    node = site.call.func if site.call is not None else site.node
    assert isinstance(node, ast.Attribute)
    return node


def _is_own(site: Site) -> bool:
    """Whether ``self.module`` is an attribute of the class around it: no wrapper but its own subclasses' looks into itself."""
    if not (isinstance(site.receiver, ast.Name) and site.receiver.id in ("self", "cls")):
        return False
    around = site.file.enclosing_class(site.node)
    if around is None:
        return False
    if any(isinstance(v, External) and v.name in WRAPPERS for base in around.bases for v in site.file.values(base)):
        return True  # also of one that is chosen: `class Own(DDP if distributed else DataParallel)`
    flow = site.file.program.flow
    wrappers = [v for v in flow.values if isinstance(v, ClassValue) and flow.wrapper_kind(v) is not None]
    for cls in (value for value in site.file.values(around) if isinstance(value, ClassValue)):
        if any(cls in flow.ancestors(wrapper) for wrapper in wrappers) and not class_stores(site.file.program, cls, "module"):
            return False
    return True


RULE = Rule(
    id="FS601",
    title=".module",
    symbols=(f"{DDP}.module",),
    roles=("read", "call"),
    why="FSDP2 shards in place, so the model that DDP or FSDP1 kept in `.module` is the model itself.",
    idiom=the_model_itself,
    fallback=unwrapped,
    examples=(
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = DDP(net, **options)\n"
                "    return model.module.vocabulary\n"
            ),
            after=(
                "from fsdp2_helpers import shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    return model.vocabulary\n"
            ),
            level=Level.SAFE,
        ),
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    return g(DDP(net, **options))\n"
                "\n"
                "\n"
                "def g(model):\n"
                "    return model.module.vocabulary\n"
            ),
            after=(
                "from fsdp2_helpers import shard_like_ddp, unwrap\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    return g(shard_like_ddp(net, **options))\n"
                "\n"
                "\n"
                "def g(model):\n"
                "    return unwrap(model).vocabulary\n"
            ),
            level=Level.SAFE,
            blind=True,
        ),
    ),
    proof=("unwrap_helper",),
)
