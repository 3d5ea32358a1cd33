"""FS417: checkpointers of libraries that write on one rank, and take the model's state on that rank alone."""

from __future__ import annotations

import ast

import libcst as cst

from ..findings import Form, Level
from ..flow.values import ClassValue
from ..migration import Migration
from ..queries.answers import Answer
from ..queries.conditions import is_rank_condition
from ..queries.file import File
from ..queries.guards import guard_of
from ..queries.kept_models import keeps_model
from ..queries.library_checkpointers import CHECKPOINTERS, PERIODIC
from ..rewrites.changes import Statement, replace, replace_statement
from ..rewrites.helper_calls import around
from ..rule import Example, Outcome, Rule
from ..sites import Site


def saving_whole(site: Site, migration: Migration) -> Outcome | None:
    """Its `save`, which all ranks call, runs with the model whole on each of them."""
    call = site.call
    if site.symbol in PERIODIC:
        return on_every_rank(site, migration)
    if call is None or not call.args or migration.sharding.of(site.file, call.args[0]).answer is Answer.NO:
        return None
    parent = site.file.parents[call]
    if isinstance(parent, ast.Attribute) or (isinstance(parent, ast.Call) and parent.func is not call):
        return None  # used at once: to load, or by an earlier run's function
    if _only_loads(site.file, call):
        return Outcome("it only loads here, which all ranks do", level=Level.OK)
    name = migration.helper(site, "saving_whole")
    if _hooks_save_alone(site.file, call):
        return Outcome(_ALONE, [around(site.file, call, f"{name}({{it}})")], Level.MANUAL, advice=_ON_ALL)
    return Outcome("every rank holds the model whole while the library saves it on one of them",
                   [around(site.file, call, f"{name}({{it}})")], Level.REVIEW)  # fmt: skip


def on_every_rank(site: Site, migration: Migration) -> Outcome | None:
    """What calls `save` now and then is there on every rank: which of them writes, the checkpointer asks itself."""
    file, call = site.file, site.call
    if call is None or not call.args or guard_of(file, call) is None:
        return None
    if not any(keeps_model(migration.program, migration.sharding, value) for value in file.values(call.args[0])):
        return None
    choice = file.parents[call]
    if isinstance(choice, ast.IfExp) and choice.body is call and is_rank_condition(file, choice.test):
        return Outcome(_EVERYWHERE, [replace(file, choice, lambda node: cst.ensure_type(node, cst.IfExp).body)], Level.REVIEW)
    guard = file.parents[file.statement(call)]
    if isinstance(guard, ast.If) and len(guard.body) == 1 and not guard.orelse and is_rank_condition(file, guard.test):
        return Outcome(_EVERYWHERE, [replace_statement(file, guard, _without_test)], Level.REVIEW)
    return Outcome(_BEHIND_TEST, level=Level.MANUAL, form=Form.NOTE, advice=_ON_EVERY_RANK)


def _without_test(node: Statement) -> list[Statement]:
    guard = cst.ensure_type(node, cst.If)
    first, *rest = guard.body.body
    assert isinstance(first, cst.SimpleStatementLine | cst.BaseCompoundStatement)
    lines = [*guard.leading_lines, *first.leading_lines]
    return [first.with_changes(leading_lines=lines), *(s for s in rest if isinstance(s, cst.SimpleStatementLine))]


_EVERYWHERE = "every rank has it, since its save() takes all of them; the checkpointer writes on the main process alone"
_BEHIND_TEST = "what saves now and then is there on some ranks alone: its save() waits for the others"
_ON_EVERY_RANK = "Let every rank have it: its checkpointer writes on one."
_ALONE = "detectron2's trainer has its PeriodicCheckpointer on the main process alone: its save waits there for the other ranks"
_ON_ALL = "Override build_hooks() and put PeriodicCheckpointer(self.checkpointer, period) in on every rank."
_TRAINERS = ("detectron2.engine.DefaultTrainer", "detectron2.engine.defaults.DefaultTrainer")


def _hooks_save_alone(file: File, call: ast.Call) -> bool:
    """Whether a trainer goes on with the library's own hooks (``DefaultTrainer.build_hooks`` in detectron2)."""
    flow, around_it = file.program.flow, file.enclosing_class(call)
    classes = [v for v in file.values(around_it) if isinstance(v, ClassValue)] if around_it is not None else []
    inheriting = [cls for cls in classes if not flow.has_member(cls, "build_hooks")]
    return any(base in _TRAINERS for cls in inheriting for base in flow.external_bases(cls))


def _only_loads(file: File, call: ast.Call) -> bool:
    """Whether the variable of a function that an object is assigned to is only asked for methods that load."""
    assign = file.parents[call]
    name = assign.targets[0] if isinstance(assign, ast.Assign) and len(assign.targets) == 1 else None
    if not isinstance(name, ast.Name) or (function := file.function(call)) is None:
        return False
    uses = [n for n in file.names_by_id[name.id] if n is not name and file.function(n) is function]
    asked = [file.parents[n] for n in uses]
    return bool(uses) and all(isinstance(a, ast.Attribute) and a.attr.startswith(("load", "resume_or_load")) for a in asked)


RULE = Rule(
    id="FS417",
    title="checkpointers of libraries",
    symbols=(*CHECKPOINTERS, *PERIODIC),
    roles=("call",),
    why="All ranks call their save(), which goes on to the model's state on the main process alone: a gather hangs there.",
    fallback=saving_whole,
    examples=(
        Example(
            before=(
                "from detectron2.checkpoint import DetectionCheckpointer\n"
                "from detectron2.engine import DefaultTrainer\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "class Trainer(DefaultTrainer):\n"
                "    def __init__(self, net, options, folder):\n"
                "        model = DDP(net, **options)\n"
                "        self.checkpointer = DetectionCheckpointer(model, folder)\n"
                "        self.register_hooks(self.build_hooks())\n"
            ),
            after=(
                "from detectron2.checkpoint import DetectionCheckpointer\n"
                "from detectron2.engine import DefaultTrainer\n"
                "from fsdp2_helpers import saving_whole, shard_like_ddp\n"
                "\n"
                "\n"
                "class Trainer(DefaultTrainer):\n"
                "    def __init__(self, net, options, folder):\n"
                "        model = shard_like_ddp(net, **options)\n"
                "        self.checkpointer = saving_whole(DetectionCheckpointer(model, folder))\n"
                "        self.register_hooks(self.build_hooks())\n"
            ),
            level=Level.MANUAL,
            note="What the library's trainer does on one rank is out of sight: its hooks are to be on all.",
        ),
        Example(
            before=(
                "from detectron2.checkpoint import DetectionCheckpointer\n"
                "from detectron2.engine import hooks\n"
                "from detectron2.utils import comm\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options, trainer, folder):\n"
                "    model = DDP(net, **options)\n"
                "    checkpointer = DetectionCheckpointer(model, folder, trainer=trainer)\n"
                "    if comm.is_main_process():\n"
                "        trainer.register_hooks([hooks.PeriodicCheckpointer(checkpointer, 1000)])\n"
            ),
            after=(
                "from detectron2.checkpoint import DetectionCheckpointer\n"
                "from detectron2.engine import hooks\n"
                "from fsdp2_helpers import saving_whole, shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options, trainer, folder):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    checkpointer = saving_whole(DetectionCheckpointer(model, folder, trainer=trainer))\n"
                "    trainer.register_hooks([hooks.PeriodicCheckpointer(checkpointer, 1000)])\n"
            ),
            level=Level.REVIEW,
        ),
        Example(
            before=(
                "from detectron2.checkpoint import DetectionCheckpointer\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options, folder):\n"
                "    model = DDP(net, **options)\n"
                "    checkpointer = DetectionCheckpointer(model, folder)\n"
                "    checkpointer.save('last')\n"
            ),
            after=(
                "from detectron2.checkpoint import DetectionCheckpointer\n"
                "from fsdp2_helpers import saving_whole, shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options, folder):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    checkpointer = saving_whole(DetectionCheckpointer(model, folder))\n"
                "    checkpointer.save('last')\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
