"""FS301: `no_sync()`."""

from __future__ import annotations

import ast

import libcst as cst

from ..facts.symbols import DDP, FSDP1
from ..findings import Level
from ..flow.values import Constant, Opaque, Wrapped
from ..migration import Migration
from ..queries.answers import Answer
from ..queries.file import File
from ..queries.given_up_windows import BY_HAND
from ..queries.local_values import local_value
from ..queries.own_gradients import uses_own_gradients, uses_own_gradients_at_times
from ..rewrites.changes import Change, Statement, remove_statement, replace_statement
from ..rewrites.helper_calls import attribute_as_call, function_instead, method_as_function
from ..rewrites.templates import statements
from ..rule import Example, Outcome, Rule
from ..sites import Site


def switched(site: Site, migration: Migration) -> Outcome | None:
    """``with model.no_sync() if more else nullcontext():`` is one call in front of what was inside."""
    if site.call is None or not migration.is_sharded_here(site) or not isinstance(site.receiver, (ast.Name, ast.Attribute)):
        return None
    found = _choice(site.file, site.call)
    if found is None or migration.may_give_up_windows(site.file.path) or not _decides_everywhere(site, migration):
        return None
    block, test, negated, needless = found
    model = site.file.text(site.receiver)

    def build(node: Statement):
        assert isinstance(node, cst.With) and isinstance(node.body, cst.IndentedBlock)
        condition = test if negated else _negated(test)
        (line,) = statements(f"{model}.set_requires_gradient_sync({condition})\n")
        return [line.with_changes(leading_lines=node.leading_lines), *node.body.body]

    changes: list[Change] = [replace_statement(site.file, block, build)]
    changes += [remove_statement(site.file, statement) for statement in needless]
    if _adds_in_low_precision(site, migration):
        return Outcome(_PRECISION, changes, Level.REVIEW)
    return Outcome("one call sets whether the coming backward reduces gradients", changes)


def context(site: Site, migration: Migration) -> Outcome | None:
    """A context manager that leaves gradients unreduced, for sharded models and others."""
    if site.sharding is not None and site.sharding.answer is Answer.NO:
        return None
    name = migration.helper(site, "no_gradient_sync")
    if site.receiver is None:  # FSDP.no_sync(model)
        change = function_instead(site.file, site.node, site.call, name)
    elif site.call is not None:
        change = method_as_function(site.file, site.call, name)
    else:
        assert isinstance(site.node, ast.Attribute)
        is_kept = _changes_later(site.file, site.node.value)
        template = f"(lambda model={{receiver}}: {name}(model))" if is_kept else f"(lambda: {name}({{receiver}}))"
        change = attribute_as_call(site.file, site.node, template)
    if uses_own_gradients(site.file, site.node) or uses_own_gradients_at_times(site.file, site.node):
        return Outcome(_OWN, [change], Level.MANUAL, advice="Take them by torch.autograd.grad from a copy of the model.")
    if migration.gives_up_by_hand(site.file.path):
        return Outcome(BY_HAND, [change], Level.REVIEW, advice="Use optimizer.zero_grad(), or model.zero_grad().")
    if _adds_in_low_precision(site, migration):
        return Outcome(_PRECISION, [change], Level.REVIEW)
    return Outcome("gradients stay unreduced inside, as with the wrapper's own context", [change])


def _changes_later(file: File, receiver: ast.expr) -> bool:
    """Whether a loop or comprehension around gives a model's name another meaning before a function asks for it."""
    names = {n.id for n in ast.walk(receiver) if isinstance(n, ast.Name)}
    loops = (a for a in file.ancestors(receiver) if isinstance(a, (ast.For, ast.ListComp, ast.SetComp, ast.DictComp)))
    targets = (t for a in loops for t in ([a.target] if isinstance(a, ast.For) else [g.target for g in a.generators]))
    return any(isinstance(n, ast.Name) and n.id in names for target in targets for n in ast.walk(target))


_OWN = "the gradients of one rank alone are used here: fully_shard keeps them apart until one reduces them; a step sees none"


_PRECISION = "FSDP1 added the gradients of micro-batches up in param_dtype, FSDP2 does in reduce_dtype: more exact, not the same"


def _adds_in_low_precision(site: Site, migration: Migration) -> bool:
    """Whether a model that FSDP1 kept in mixed precision may come here, with gradients reduced in another type."""
    value = site.sharding.value if site.sharding is not None else None
    if not isinstance(value, Wrapped) or value.kind != "FSDP1" or not migration.program.mentions(r"\breduce_dtype\b"):
        return False
    file, call = migration.program.call_node(value.site)
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    precision = given.get("mixed_precision")
    if precision is None:
        return None in given
    values = [v for v in file.values(precision) if not (isinstance(v, Constant) and v.value is None)]
    made = [v for v in values if isinstance(v, Opaque) and v.name.endswith(".MixedPrecision")]
    if len(made) < len(values) or not made:
        return not (isinstance(precision, ast.Constant) and precision.value is None)
    return not all(_is_in_one_type(migration.program.call_node(v.site)[1]) for v in made)


def _is_in_one_type(policy: ast.Call) -> bool:
    """Whether a policy names one type for parameters and for the reduction of gradients."""
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in policy.keywords}
    return None not in given and given.get("param_dtype") == given.get("reduce_dtype")


def _choice(file: File, call: ast.Call) -> tuple[ast.With, str, bool, list[ast.stmt]] | None:
    """The block that a choice between ``no_sync()`` and no context is entered for, and its test.

    The third entry says whether the test means *reduce*; the last holds the assignment of the context, if it has one.
    """
    choice = file.parents[call]
    if not isinstance(choice, ast.IfExp) or call not in (choice.body, choice.orelse):
        return None
    other = choice.orelse if call is choice.body else choice.body
    if not isinstance(other, ast.Call) or (file.external(other.func) or "").rpartition(".")[2] not in ("nullcontext", "suppress"):
        return None
    around, needless = file.parents[choice], []
    if isinstance(around, ast.Assign):
        found = _entered(file, around)
        if found is None:
            return None
        around, needless = found, [around]
    if isinstance(around, ast.withitem):
        around = file.parents[around]
    if not isinstance(around, ast.With) or len(around.items) != 1 or around.items[0].optional_vars is not None:
        return None
    if not any(isinstance(n, ast.Attribute) and n.attr == "backward" for n in ast.walk(around)):
        return None
    return around, file.text(choice.test), call is choice.orelse, list(needless)


def _decides_everywhere(site: Site, migration: Migration) -> bool:
    """Whether each backward of the program is inside such a block: others would find what the last one set."""
    for path in migration.programs.sharing_entries(site.file.path):
        file = migration.program.file(migration.program.index(path))
        calls = [n for n in file.nodes(ast.Call) if isinstance(n.func, ast.Attribute)]
        chosen = {found[0] for call in calls if call.func.attr == "no_sync" and (found := _choice(file, call))}  # type: ignore[attr-defined]
        if any(call.func.attr == "backward" and chosen.isdisjoint(file.ancestors(call)) for call in calls):  # type: ignore[attr-defined]
            return False
    return True


def _entered(file: File, assignment: ast.Assign) -> ast.With | None:
    """The block right behind an assignment that enters what it assigns."""
    block, index = file.block_of(assignment)
    following = block[index + 1] if index + 1 < len(block) else None
    if not isinstance(following, ast.With) or not isinstance(following.items[0].context_expr, ast.Name):
        return None
    value = local_value(file, following.items[0].context_expr)
    return following if value is not None and value.statement is assignment and value.read_once else None


_OPPOSITES = {"!=": "==", "==": "!=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


def _negated(test: str) -> str:
    """The opposite of a condition as people write it."""
    node = ast.parse(test, mode="eval").body
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return ast.unparse(node.operand)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for sign, opposite in _OPPOSITES.items():
            left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
            if ast.unparse(node) == f"{left} {sign} {right}":
                return f"{left} {opposite} {right}"
    simple = isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
    return f"not {test}" if simple else f"not ({test})"


RULE = Rule(
    id="FS301",
    title="no_sync()",
    symbols=(f"{DDP}.no_sync", f"{FSDP1}.no_sync"),
    roles=("call", "read"),
    why="Models of FSDP2 have no no_sync(): set_requires_gradient_sync says whether a backward reduces gradients.",
    idiom=switched,
    fallback=context,
    examples=(
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "from contextlib import nullcontext\n"
                "\n"
                "\n"
                "def f(net, options, batches):\n"
                "    model = DDP(net, **options)\n"
                "    for i, batch in enumerate(batches):\n"
                "        with model.no_sync() if i % 4 != 3 else nullcontext():\n"
                "            model(batch).sum().backward()\n"
            ),
            after=(
                "from fsdp2_helpers import shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options, batches):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    for i, batch in enumerate(batches):\n"
                "        model.set_requires_gradient_sync(i % 4 == 3)\n"
                "        model(batch).sum().backward()\n"
            ),
            level=Level.SAFE,
        ),
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options, batch):\n"
                "    model = DDP(net, **options)\n"
                "    with model.no_sync():\n"
                "        model(batch).sum().backward()\n"
            ),
            after=(
                "from fsdp2_helpers import no_gradient_sync, shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options, batch):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    with no_gradient_sync(model):\n"
                "        model(batch).sum().backward()\n"
            ),
            level=Level.SAFE,
        ),
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(nets, options, batch):\n"
                "    models = [DDP(net, **options) for net in nets]\n"
                "    contexts = [model.no_sync for model in models]\n"
                "    for context in contexts:\n"
                "        with context():\n"
                "            sum(model(batch).sum() for model in models).backward()\n"
            ),
            after=(
                "from fsdp2_helpers import no_gradient_sync, shard_like_ddp\n"
                "\n"
                "\n"
                "def f(nets, options, batch):\n"
                "    models = [shard_like_ddp(net, **options) for net in nets]\n"
                "    contexts = [(lambda model=model: no_gradient_sync(model)) for model in models]\n"
                "    for context in contexts:\n"
                "        with context():\n"
                "            sum(model(batch).sum() for model in models).backward()\n"
            ),
            level=Level.SAFE,
            note="A bound method keeps its model when the loop goes on to the next one.",
        ),
    ),
    proof=("no_sync_helper",),
)
