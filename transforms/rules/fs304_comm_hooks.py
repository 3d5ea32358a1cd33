"""FS304: `register_comm_hook`, and `register_ddp_comm_hook` that calls it."""

from __future__ import annotations

import ast

from ..facts.symbols import DDP, FSDP1
from ..findings import Form, Level
from ..flow.values import Bound, FunctionValue
from ..migration import Migration
from ..queries.answers import Answer
from ..rewrites.helper_calls import attribute_as_call, function_instead, method_as_function
from ..rule import Example, Outcome, Rule
from ..sites import Site

_BY_TYPE = "torch.distributed.algorithms.ddp_comm_hooks.register_ddp_comm_hook"
_TYPES = "torch.distributed.algorithms.ddp_comm_hooks.DDPCommHookType."
_KNOWN = frozenset({"allreduce_hook", "fp16_compress_hook", "bf16_compress_hook", "ALLREDUCE", "FP16_COMPRESS", "BF16_COMPRESS"})


def registered(site: Site, migration: Migration) -> Outcome | None:
    """The helper sets what sharded gradients travel in; other models register their hook themselves."""
    if site.sharding is not None and site.sharding.answer is Answer.NO:
        return None
    name = migration.helper(site, "register_comm_hook_type" if site.symbol == _BY_TYPE else "register_comm_hook")
    if site.receiver is None:
        change = function_instead(site.file, site.node, site.call, name)
    elif site.call is not None:
        change = method_as_function(site.file, site.call, name)
    else:
        assert isinstance(site.node, ast.Attribute)
        change = attribute_as_call(site.file, site.node, f"(lambda state, hook: {name}({{receiver}}, state, hook))")
    unknown = _unknown_hook(site)
    if unknown is not None:
        message = f"fully_shard has no place for {unknown}: registering it on a sharded model raises"
        advice = "Do what it does to p.grad behind backward(), leave it out, or keep DDP for this model (--ddp keep)."
        return Outcome(message, [change], Level.MANUAL, Form.STOP, advice)
    return Outcome("torch's compressing hooks say what sharded gradients travel in; any other hook raises", [change])


def _unknown_hook(site: Site) -> str | None:
    """The name of a hook that has no counterpart: most of torch's, and every function of the repository."""
    for argument in [*site.call.args, *(k.value for k in site.call.keywords)] if site.call else ():
        hook = argument.func if isinstance(argument, ast.Call) else argument
        values = site.file.values(hook)
        if values and all(isinstance(value, (FunctionValue, Bound)) for value in values):
            return ast.unparse(hook)
        symbol = site.file.external(hook) or ""
        last = symbol.rpartition(".")[2]
        is_torchs = symbol.startswith("torch.distributed.algorithms.") and last.endswith(("_hook", "_compress_wrapper"))
        is_torchs = is_torchs or symbol.startswith(_TYPES)
        if is_torchs and last not in _KNOWN:
            return last
    return None


RULE = Rule(
    id="FS304",
    title="communication hooks",
    symbols=(f"{DDP}.register_comm_hook", f"{FSDP1}.register_comm_hook", _BY_TYPE),
    roles=("call", "read", "value"),
    why="Models of FSDP2 take no communication hook: gradients travel in the dtype that the sharding says.",
    fallback=registered,
    examples=(
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = DDP(net, **options)\n"
                "    model.register_comm_hook(None, fp16_compress_hook)\n"
            ),
            after=(
                "from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook\n"
                "\n"
                "from fsdp2_helpers import register_comm_hook, shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    register_comm_hook(model, None, fp16_compress_hook)\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
