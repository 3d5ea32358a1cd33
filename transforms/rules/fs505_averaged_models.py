"""FS505: averages of models that libraries keep: they copy the model, and write their copy from its parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from fnmatch import fnmatchcase

from ..facts.symbols import AVERAGES, KEEPERS_OF_AVERAGES
from ..findings import Level
from ..flow.values import Constant, Opaque
from ..migration import Migration
from ..queries.answers import Answer
from ..queries.copied_models import copies_wrapper
from ..queries.file import File
from ..rewrites.helper_calls import around
from ..rule import Example, Outcome, Rule
from ..sites import AVERAGE_UPDATE, Site


def averaged(site: Site, migration: Migration) -> Outcome | None:
    """The library gets a plain model with whole parameters, as DDP's module was."""
    call = site.call
    model = call.args[0] if call is not None and call.args else None
    if call is None or model is None:
        return None
    if not any(fnmatchcase(site.symbol, pattern) for pattern in (*AVERAGES, AVERAGE_UPDATE)):
        return _kept_whole(site, migration, call) if _is_of_wrapped(site, migration, model) else None
    if migration.runs_before_wraps(site.file, call) or migration.is_fresh(site.file, call, model):
        return None
    found = migration.sharding.of(site.file, model)
    if found.answer is Answer.NO:
        return None
    if _reads_state(site, call) and migration.whole_states.of(site.file, model, found.wrappers):
        if not any(_is_of_wrapper(file, made, migration) for file, made in _constructors(site, call)):
            return Outcome("the average is updated from the model's state dict, which stays whole", level=Level.OK)
        change = around(site.file, model, f"{migration.helper(site, 'in_wrapper')}({{it}})")
        return Outcome("the average has the names of DDP's state dict, and is updated by them", [change])
    is_copied = _is_of_wrapper(site.file, call, migration)
    name = migration.helper(site, "wrapped_copy" if is_copied else "as_plain")
    return Outcome("the average is kept over a plain copy with whole parameters: its library copies and writes plain tensors",
                   [around(site.file, model, f"{name}({{it}})")])  # fmt: skip


_READ_STATES = frozenset(f"timm.utils.{module}{name}" for module in ("", "model_ema.") for name in ("ModelEma", "ModelEmaV2"))
"""Averages that read nothing of a model but its ``state_dict()`` when they are updated."""
_COPIES_WRAPPERS = {"torch.optim.swa_utils.AveragedModel", *_READ_STATES}
"""Their states have the names of what they are given, be it a wrapper."""


def _is_of_wrapper(file: File, call: ast.Call, migration: Migration) -> bool:
    """Whether a library copies DDP's wrapper itself, for an average whose names begin with ``module.``."""
    copies = file.external(call.func) in _COPIES_WRAPPERS
    return copies and bool(call.args) and copies_wrapper(migration.sharding, file, call)


def _constructors(site: Site, update: ast.Call) -> Iterator[tuple[File, ast.Call]]:
    """Where the averages are made that a call updates."""
    made = site.file.values(update.func.value) if isinstance(update.func, ast.Attribute) else []
    program = site.file.program
    return (program.call_node(v.site) for v in made if isinstance(v, Opaque) and program.is_written_as_call(v.site))


def _reads_state(site: Site, call: ast.Call) -> bool:
    """Whether a call surely updates such an average."""
    if site.symbol != AVERAGE_UPDATE or not isinstance(call.func, ast.Attribute):
        return False
    values = [v for v in site.file.values(call.func.value) if not (isinstance(v, Constant) and v.value is None)]
    return bool(values) and all(isinstance(v, Opaque) and v.name in _READ_STATES for v in values)


def _is_of_wrapped(site: Site, migration: Migration, given: ast.expr) -> bool:
    """Whether a model in a wrapper, its module or its parameters are given."""
    if isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute) and given.func.attr == "parameters":
        given = given.func.value
    around_it = given.value if isinstance(given, ast.Attribute) and given.attr == "module" else given
    return any(migration.sharding.of(site.file, model).wrappers for model in (given, around_it))


def _kept_whole(site: Site, migration: Migration, call: ast.Call) -> Outcome | None:
    """Whatever a library does with a model or its parameters, it does with whole copies, and finds them up to date."""
    name = migration.helper(site, "with_whole_copies")
    return Outcome(f"{site.member} keeps whole copies of what it is given, which each call of its methods brings up to date",
                   [around(site.file, call.func, f"{name}({{it}})")])  # fmt: skip


RULE = Rule(
    id="FS505",
    title="averages of models by libraries",
    symbols=(*AVERAGES, AVERAGE_UPDATE, *KEEPERS_OF_AVERAGES),
    roles=("call",),
    why="AveragedModel and its kin deep-copy the model, which FSDP2 refuses, and combine its parameters with plain ones.",
    fallback=averaged,
    examples=(
        Example(
            before=(
                "from timm.utils import ModelEma\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options, batch):\n"
                "    model = DDP(net, **options)\n"
                "    average = ModelEma(model)\n"
                "    model(batch).sum().backward()\n"
                "    average.update(model)\n"
            ),
            after=(
                "from timm.utils import ModelEma\n"
                "\n"
                "from fsdp2_helpers import in_wrapper, shard_like_ddp, wrapped_copy\n"
                "\n"
                "\n"
                "def f(net, options, batch):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    average = ModelEma(wrapped_copy(model))\n"
                "    model(batch).sum().backward()\n"
                "    average.update(in_wrapper(model))\n"
            ),
            level=Level.REVIEW,
            note="The average of a wrapper has its names, which begin with `module.`: files of it do too.",
        ),
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "from torch.optim.swa_utils import AveragedModel\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = DDP(net, **options)\n"
                "    average = AveragedModel(model.module)\n"
                "    average.update_parameters(model.module)\n"
                "    return model, average\n"
            ),
            after=(
                "from torch.optim.swa_utils import AveragedModel\n"
                "\n"
                "from fsdp2_helpers import as_plain, shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    average = AveragedModel(as_plain(model))\n"
                "    average.update_parameters(as_plain(model))\n"
                "    return model, average\n"
            ),
            level=Level.REVIEW,
        ),
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "from torch.optim.swa_utils import AveragedModel\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = DDP(net, **options)\n"
                "    average = AveragedModel(model, use_buffers=True)\n"
                "    average.update_parameters(model)\n"
                "    return average.state_dict()\n"
            ),
            after=(
                "from torch.optim.swa_utils import AveragedModel\n"
                "\n"
                "from fsdp2_helpers import as_plain, shard_like_ddp, wrapped_copy\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    average = AveragedModel(wrapped_copy(model), use_buffers=True)\n"
                "    average.update_parameters(as_plain(model))\n"
                "    return average.state_dict()\n"
            ),
            level=Level.REVIEW,
        ),
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "from ema_pytorch import EMA\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = DDP(net, **options)\n"
                "    return model, EMA(model.module, beta=0.99)\n"
            ),
            after=(
                "from ema_pytorch import EMA\n"
                "from fsdp2_helpers import shard_like_ddp, with_whole_copies\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    return model, with_whole_copies(EMA)(model, beta=0.99)\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
