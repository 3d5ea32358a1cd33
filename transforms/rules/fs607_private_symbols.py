"""FS607: FSDP1's own functions and constants."""

from __future__ import annotations

import libcst as cst

from ..facts.symbols import FSDP1, is_old
from ..findings import Form, Level
from ..migration import Migration
from ..rewrites.changes import replace
from ..rule import Example, Outcome, Rule
from ..sites import Site

_FSDP = "torch.distributed.fsdp"
_OF_NAMES = ("clean_tensor_name", "FSDP_PREFIX", "FSDP_WRAPPED_MODULE", "FSDP_FLATTENED", "FLAT_PARAM")


RESHARD = f"{_FSDP}._runtime_utils._reshard"


def resharded(site: Site, migration: Migration) -> Outcome | None:
    """``_reshard(unit, handle, True)`` frees what a unit has gathered: units of FSDP2 have a method for it."""
    if site.symbol != RESHARD or site.call is None or not site.call.args:
        return None
    name = migration.helper(site, "resharded")

    def build(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Call)
        return node.with_changes(func=cst.Name(name), args=[node.args[0].with_changes(comma=cst.MaybeSentinel.DEFAULT)])

    return Outcome("a unit is resharded by its own method, without a handle", [replace(site.file, site.call, build)])


def told(site: Site, migration: Migration) -> Outcome | None:
    """Prefixes of names are found nowhere any more; everything else works on FSDP1's own modules alone."""
    if not is_old(site.symbol) or site.receiver is not None:
        return None
    if site.member in _OF_NAMES:
        return Outcome("names of FSDP2 have no prefix: taking it off changes nothing", level=Level.OK)
    if site.role in ("test", "annotation"):
        return Outcome("nothing of FSDP2 is of this class: the answer is no", level=Level.REVIEW, form=Form.NOTE)
    return Outcome(
        f"{site.member} works on FSDP1's own modules, and finds nothing in a model of FSDP2", level=Level.MANUAL, form=Form.NOTE,
        advice="Say what it is for with FSDPModule's methods (unshard, reshard, set_…), DTensors, or a full state dict.",
    )  # fmt: skip


RULE = Rule(
    id="FS607",
    title="private parts of FSDP1",
    symbols=(f"{_FSDP}._*", f"{FSDP1}.*", f"{_FSDP}.FlatParameter", f"{_FSDP}.FlatParameter.*", f"{_FSDP}.sharded_grad_scaler.*"),
    roles=("call", "value", "test", "annotation", "base"),
    why="FSDP1's internals know only its own modules: at best they find nothing to do.",
    idiom=resharded,
    fallback=told,
    examples=(
        Example(
            before=(
                "from torch.distributed.fsdp._common_utils import clean_tensor_name\n"
                "\n"
                "\n"
                "def f(name):\n"
                "    return clean_tensor_name(name)\n"
            ),
            after=(
                "from torch.distributed.fsdp._common_utils import clean_tensor_name\n"
                "\n"
                "\n"
                "def f(name):\n"
                "    return clean_tensor_name(name)\n"
            ),
            level=Level.OK,
        ),
        Example(
            before=(
                "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
                "from torch.distributed.fsdp._runtime_utils import _reshard\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = FSDP(net, **options)\n"
                "    for unit in FSDP.fsdp_modules(model):\n"
                "        handle = unit._handle\n"
                "        _reshard(unit, handle, True)\n"
            ),
            after=(
                "from fsdp2_helpers import resharded, shard_like_fsdp1, units\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_fsdp1(net, **options)\n"
                "    for unit in units(model):\n"
                "        resharded(unit)\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
