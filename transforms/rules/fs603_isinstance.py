"""FS603: tests for the wrapper classes."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import libcst as cst

from ..facts.symbols import DDP, FSDP1, FSDP_MODULE, wraps_in_library
from ..findings import Form, Level
from ..flow.values import Constant, Opaque
from ..migration import Migration
from ..queries.answers import Answer
from ..queries.class_tests import tests_of
from ..queries.copied_models import copies_wrappers
from ..queries.file import File
from ..queries.packages import is_beside_package
from ..queries.unwrapping import only_asked_to_unwrap, unwrapping_choice
from ..queries.wrapper_classes import holds_module
from ..rewrites.changes import Change, replace
from ..rewrites.helper_calls import name_instead
from ..rewrites.templates import expression
from ..rule import Example, Outcome, Rule
from ..sites import Site


def asks_for_sharding(site: Site, migration: Migration) -> Outcome | None:
    """The class of sharded models in the place of the wrapper's."""
    if not migration.options.wraps:
        return None
    if site.role == "annotation" and _is_unwrapped_in_body(site):
        return Outcome("the test for the class in this function stays, and so does what it says of its argument", level=Level.OK)
    if site.role == "test" and unwrapping_choice(site.file, site.node) is not None:
        if site.call is not None and holds_module(site.file, site.call.args[0]):
            base = migration.helper(site, "ShardedLikeDDP" if site.symbol == DDP else "ShardedLikeFSDP1")
            return Outcome("classes derived from wrappers keep the module inside, other models of FSDP2 have none",
                           [name_instead(site.file, _class_expression(site), base)], Level.REVIEW)  # fmt: skip
        return Outcome(_UNWRAPS, level=Level.OK)
    if site.role == "test" and site.call is not None and only_asked_to_unwrap(site.file, site.call):
        return Outcome(_UNWRAPS, level=Level.OK)
    if site.role == "classes":
        others = [(file, call) for file, call in _tests(site) if not _only_unwraps(file, call)]
        if not others:
            return Outcome(_UNWRAPS, level=Level.OK)
        if len(others) < len(_tests(site)) and all(file is site.file for file, _ in others):
            name = migration.torch(site, FSDP_MODULE)
            return Outcome("models of FSDP2 are FSDPModules; what asks for `.module` goes the other way",
                           [_both_instead(file, call.args[1], name) for file, call in others])  # fmt: skip
    tests = _tests(site)
    if tests and all(_is_of_others(file, call, migration) for file, call in tests):
        return Outcome("no model of FSDP2 comes here: a library's stay what they are", level=Level.OK)
    if site.role == "test" and site.symbol == DDP and _works_on_insides(site):
        return Outcome(_INSIDES, level=Level.REVIEW, form=Form.NOTE)
    asked_for = _class_expression(site)
    wraps = [migration.stays_wrapped(wrap) for wrap in migration.wraps_near(site.file.path) if wrap.kind.lower() == _kind(site)]
    if wraps and all(wraps):
        return Outcome("the wrapper stays in the programs that ask for it", level=Level.OK)
    kinds = migration.wrapper_kinds_near(site.file.path)
    if kinds and _kind(site) not in kinds and not isinstance(site.file.parents[asked_for], (ast.Tuple, ast.BinOp, ast.Subscript)):
        return Outcome("it asks for a wrapper that no model of the program was in", level=Level.OK)
    if _is_alone(site, migration):
        return Outcome("nothing in the repository is wrapped", level=Level.OK)
    if _is_for_users(site, migration):
        return _asks_for_both(site, migration)
    if (migration.tells_apart or migration.native_programs) and site.role == "test":  # native ones are FSDPModules too
        return _asks_which(site, migration)
    may_be_other = any(_may_be_wrapped_elsewhere(file, call, migration) for file, call in _tests(site))
    by_libraries = (wraps_in_library(other.symbol) for sites in migration.sites.values() for other in sites)
    may_stay = site.symbol == DDP or (not kinds and any(by_libraries))
    if any(wraps) or (may_stay and (may_be_other or copies_wrappers(migration.sharding))):
        return _asks_for_both(site, migration)
    changes = [name_instead(site.file, asked_for, migration.torch(site, FSDP_MODULE))]
    changes += _merged(site, asked_for)
    return Outcome("models of FSDP2 are FSDPModules", changes, form=Form.IDIOM)


def _is_alone(site: Site, migration: Migration) -> bool:
    """Whether programs are seen that have a test for wrappers, and nothing makes any: not the repository, and no library."""
    is_seen = migration.programs.is_reached(site.file.path) and not migration.options.is_package
    symbols = {other.symbol for sites in migration.sites.values() for other in sites}
    return is_seen and not migration.wrapper_kinds and not any(map(wraps_in_library, symbols))


def _is_for_users(site: Site, migration: Migration) -> bool:
    """Whether a package leaves wraps to those who use it: its tests and examples alone have any."""
    program = migration.program
    paths = [program.call_node(wrap.site)[0].path for wrap in program.wraps if wrap.site >= 0]
    beside = [any(map(is_beside_package, path.split("/")[:-1])) for path in (site.file.path, *paths)]
    return bool(paths) and not beside[0] and all(beside[1:])


def _is_unwrapped_in_body(site: Site) -> bool:
    """Whether a function asks an argument, where its annotation stands, for the class to take the wrapper off."""
    argument = next((a for a in site.file.ancestors(site.node) if isinstance(a, (ast.arg, ast.stmt))), None)
    if not isinstance(argument, ast.arg):
        return False
    function = next(a for a in site.file.ancestors(argument) if isinstance(a, (ast.FunctionDef, ast.AsyncFunctionDef)))
    calls = (n for n in ast.walk(function) if isinstance(n, ast.Call) and len(n.args) == 2)
    asked = (call for call in calls if ast.unparse(call.func) == "isinstance" and ast.unparse(call.args[0]) == argument.arg)
    return any(_only_unwraps(site.file, test) and site.file.external(test.args[1]) == site.symbol for test in asked)


def _only_unwraps(file: File, call: ast.Call) -> bool:
    return unwrapping_choice(file, call) is not None or only_asked_to_unwrap(file, call)


def _is_of_others(file: File, call: ast.Call, migration: Migration) -> bool:
    """Whether only models are asked about that nobody here wraps, though a library may."""
    found = [v for v in file.values(call.args[0]) if not isinstance(v, Constant)]
    by_library = any(isinstance(v, Opaque) and wraps_in_library(v.name) for v in found)
    return by_library and migration.sharding.of(file, call.args[0]).answer is Answer.NO


def _works_on_insides(site: Site) -> bool:
    """Whether a function asks what it tests for DDP's own way to send parameters, which a model of FSDP2 has not."""
    if site.call is None:
        return False
    tested = ast.unparse(site.call.args[0])
    inside = ast.walk(site.file.function(site.call) or site.file.tree)
    return any(isinstance(n, ast.Attribute) and n.attr in _SENDS and ast.unparse(n.value) == tested for n in inside)


_UNWRAPS = "it answers no for models of FSDP2, and the branch without `.module` is right"
_SENDS = frozenset({"_sync_params_and_buffers", "_sync_params"})
_INSIDES = "what it leads to works with DDP's own insides, which models of FSDP2 have not: they go the other way"


def _tests(site: Site) -> list[tuple[File, ast.Call]]:
    """The ``isinstance`` calls that ask for the class."""
    if site.role == "test":
        return [(site.file, site.call)] if site.call is not None else []
    classes: ast.AST = site.node
    while isinstance(site.file.parents[classes], (ast.Tuple, ast.List, ast.BinOp, ast.Subscript)):
        classes = site.file.parents[classes]
    assert isinstance(classes, ast.expr)
    return tests_of(site.file, classes)


def _may_be_wrapped_elsewhere(file: File, call: ast.Call, migration: Migration) -> bool:
    """Whether what is asked about may be in DDP without a call of DDP in the repository: a library makes such models too."""
    values = file.values(call.args[0])
    known = [v for v in values if migration.sharding.of_values([v]).wrappers or not migration.sharding.of_values([v]).possible]
    return not values or len(known) < len(values)


def _names_beside(file: File, asked_for: ast.expr) -> list[ast.expr]:
    """The names in the tuple or union around a class."""
    around: ast.AST = asked_for
    while isinstance(file.parents[around], (ast.Tuple, ast.BinOp, ast.Subscript)):
        around = file.parents[around]
    return [n for n in ast.walk(around) if isinstance(n, (ast.Name, ast.Attribute))]


def _both_instead(file: File, asked_for: ast.expr, name: str) -> Change:
    """A class with another one beside it; in a tuple they become two of its elements."""
    template = "{it} | {other}" if isinstance(file.parents[asked_for], ast.BinOp) else "({it}, {other})"
    return replace(file, asked_for, lambda node: expression(template, it=cst.ensure_type(node, cst.BaseExpression), other=name))


def _asks_for_both(site: Site, migration: Migration) -> Outcome:
    """The class of sharded models beside the wrapper's, in which some stay."""
    asked_for = _class_expression(site)
    if any(site.file.external(n) == FSDP_MODULE for n in _names_beside(site.file, asked_for)):
        return Outcome("it asks for FSDPModule too", level=Level.OK)
    both = _both_instead(site.file, asked_for, migration.torch(site, FSDP_MODULE))
    message = "models of FSDP2 are FSDPModules; those that others wrap stay what they are"
    return Outcome(message, [both, *_merged(site, asked_for)])


def _asks_which(site: Site, migration: Migration) -> Outcome:
    """Which wrapper a model stands for, where the program has models of both and asks for one of them."""
    assert site.call is not None
    asked = {s.symbol for s in migration.sites[site.file.path] if s.call is site.call and s.symbol in (FSDP1, DDP)}
    if len(asked) > 1 or _asks_for_more(site.call):
        name = migration.torch(site, FSDP_MODULE)
        changes = [name_instead(site.file, _class_expression(site), name), *_merged(site, _class_expression(site))]
        return Outcome("models of FSDP2 are FSDPModules", changes, form=Form.IDIOM)
    name = migration.helper(site, "stands_for")

    def build(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Call)
        return expression("{name}({model}) == {kind}", name=name, model=node.args[0].value, kind=f'"{_kind(site)}"')

    return Outcome("the wrap notes which wrapper it stands for", [replace(site.file, site.call, build)])


def _kind(site: Site) -> str:
    return "ddp" if site.symbol == DDP else "fsdp1"


def _asks_for_more(call: ast.Call) -> bool:
    return isinstance(call.args[1], (ast.Tuple, ast.BinOp))


def _merged(site: Site, asked_for: ast.expr) -> list[Change]:
    """The change that takes repetitions out of the tuple or union around a class."""
    around = site.file.parents[asked_for]
    if isinstance(around, ast.Tuple) and isinstance(site.file.parents[around], ast.Subscript):
        around = site.file.parents[around]  # for libcst there is no tuple between brackets
    if isinstance(around, (ast.Tuple, ast.BinOp, ast.Subscript)):
        return [replace(site.file, around, _without_repetition)]
    return []


def _without_repetition(node: cst.CSTNode) -> cst.CSTNode:
    """A tuple or union of classes that names each once."""
    if isinstance(node, cst.BinaryOperation) and node.left.deep_equals(node.right):
        return node.left
    if isinstance(node, cst.Subscript):
        return _union_without_repetition(node)
    if not isinstance(node, cst.Tuple):
        return node
    elements: list[cst.BaseElement] = []
    for element in [inner for outer in node.elements for inner in _elements(outer)]:
        if not any(element.value.deep_equals(known.value) for known in elements):
            elements.append(element)
    if len(elements) == 1:
        return elements[0].value
    last = node.elements[-1].comma
    return node.with_changes(elements=[*elements[:-1], elements[-1].with_changes(comma=last)])


def _elements(element: cst.BaseElement) -> Sequence[cst.BaseElement]:
    """An element of a tuple of classes, or those of the tuple that it is itself."""
    if not isinstance(element.value, cst.Tuple):
        return [element]
    return [*element.value.elements[:-1], element.value.elements[-1].with_changes(comma=element.comma)]


def _union_without_repetition(node: cst.Subscript) -> cst.BaseExpression:
    """``Union[A, B]`` that names each once; the entries of ``Tuple[A, B]`` and its like have places."""
    name = node.value.attr if isinstance(node.value, cst.Attribute) else node.value
    if not (isinstance(name, cst.Name) and name.value == "Union"):
        return node
    kept: list[cst.SubscriptElement] = []
    for element in node.slice:
        if not any(element.slice.deep_equals(known.slice) for known in kept):
            kept.append(element)
    if len(kept) == 1 and isinstance(kept[0].slice, cst.Index):
        return kept[0].slice.value
    return node.with_changes(slice=[*kept[:-1], kept[-1].with_changes(comma=node.slice[-1].comma)])


def _class_expression(site: Site) -> ast.expr:
    """The expression of the class itself: the site of a test is the whole call."""
    if not isinstance(site.node, ast.Call):
        assert isinstance(site.node, ast.expr)
        return site.node
    nodes = (n for n in ast.walk(site.node.args[1]) if isinstance(n, (ast.Name, ast.Attribute)))
    return next(n for n in nodes if site.file.external(n) == site.symbol)


RULE = Rule(
    id="FS603",
    title="isinstance",
    symbols=(FSDP1, DDP),
    roles=("test", "classes", "annotation"),
    why="A model of FSDP2 is no instance of the wrappers: the test would silently answer no.",
    fallback=asks_for_sharding,
    examples=(
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
                "\n"
                "\n"
                "def f(model):\n"
                "    return isinstance(model, (DDP, FSDP))\n"
            ),
            after=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "from torch.distributed.fsdp import FSDPModule\n"
                "\n"
                "\n"
                "def f(model):\n"
                "    return isinstance(model, (DDP, FSDPModule))\n"
            ),
            level=Level.SAFE,
            note="Who calls it is not seen: a library may have wrapped the model, and its DDP stays.",
        ),
        Example(
            before=(
                "from accelerate import Accelerator\n"
                "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
                "\n"
                "\n"
                "def f(models):\n"
                "    return all(isinstance(model, FSDP) for model in Accelerator().prepare(*models))\n"
            ),
            after=(
                "from accelerate import Accelerator\n"
                "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, FSDPModule\n"
                "\n"
                "\n"
                "def f(models):\n"
                "    return all(isinstance(model, (FSDP, FSDPModule)) for model in Accelerator().prepare(*models))\n"
            ),
            level=Level.SAFE,
            note="Nobody here wraps in FSDP1: a library may go on doing so.",
        ),
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def is_parallel(model):\n"
                "    return isinstance(model, DDP)\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    print(is_parallel(DDP(net, **options)))\n"
            ),
            after=(
                "from fsdp2_helpers import shard_like_ddp\n"
                "from torch.distributed.fsdp import FSDPModule\n"
                "\n"
                "\n"
                "def is_parallel(model):\n"
                "    return isinstance(model, FSDPModule)\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    print(is_parallel(shard_like_ddp(net, **options)))\n"
            ),
            level=Level.SAFE,
        ),
    ),
    proof=("fsdp_or_ddp",),
)
