"""``ShardedTensor``, which the sharded state of FSDP1 is made of: FSDP2's is made of ``DTensor``."""

from __future__ import annotations

import ast

from ..analysis.values import Opaque
from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..state.sharded_members import asked_by_name
from ..state.sharded_tensors import functions_around, makers
from ..state.tensor_refusals import puts_together, refusal
from ..state.tensor_tests import DTENSOR, asks_for_dtensor, local_reads, test_around
from ..view import FileView

_ADVICE = (
    "FSDP2's sharded tensors are torch.distributed.tensor.DTensor: to_local() is this rank's part, full_tensor() the whole, "
    "device_mesh and placements say how it is divided. Keep the test for files that the old program wrote."
)

_NAME = "Name torch.distributed.tensor.DTensor in it, beside ShardedTensor where files of the old program are read."


def check(site: Site, migration: Migration) -> Outcome:
    """A test of state that is read for its local part asks for DTensor; what knows more of shards is left to a person.

    Such a test refuses a DTensor where it can, and else holds what would bring one.
    """
    if site.role == "keyword":
        return Outcome(Level.SAFE, "part of its call", silent=True)
    if site.role == "hazard":
        return _by_name(site, migration)
    if site.role == "annotation":
        return Outcome(Level.MANUAL, "sharded state of FSDP2 holds DTensors; the annotation itself changes nothing", _NAME)
    test = test_around(site.view, site.node) if isinstance(site.node, ast.expr) else None
    if test is not None and asks_for_dtensor(site.view, test):
        return Outcome(Level.OK, "DTensors are asked for as well")
    reads = local_reads(site.view, test) if test is not None else None
    if test is not None and reads is not None and test.args[1] is site.node and not _is_from_file(site.view, test):
        return _rewrite(site, migration, reads)
    special = _without_a_word(site, migration, test) if test is not None else None
    return special or Outcome(
        Level.MANUAL,
        "tensors of an FSDP2 model's sharded state are no ShardedTensor: the test fails without a word"
        if test is not None
        else f"{site.member} has no counterpart in FSDP2",
        _ADVICE,
        holds=True,
        within=functions_around(migration, site) if site.role in ("isinstance", "reference") else None,
    )


def _by_name(site: Site, migration: Migration) -> Outcome:
    """A question that a DTensor answers with no, in silence; or the read of a member, which raises."""
    if isinstance(site.node, ast.Attribute):
        return Outcome(Level.MANUAL, f"{site.member} is a member of ShardedTensor: reading it off a DTensor raises", _ADVICE)
    return Outcome(
        Level.MANUAL,
        "this asks for ShardedTensor by a name, which a DTensor does not have: the answer is no without a word",
        _ADVICE,
        holds=True,
        within=functions_around(migration, site),
    )


def _without_a_word(site: Site, migration: Migration, test: ast.Call) -> Outcome | None:
    """A test that ``DTensor`` need not pass, or that refuses one, so that nothing goes wrong in silence."""
    view = site.view
    if puts_together(view, test):
        return Outcome(Level.OK, "ShardedTensors of the old program's files are put together here, which others do not need")
    if isinstance(view.parents[test], ast.Assert):
        return Outcome(Level.MANUAL, "a DTensor, of which FSDP2's sharded state is made, fails the assertion", _ADVICE)
    if test.args[1] is not site.node or makers(migration) == frozenset():
        return None
    outcome = Outcome(
        Level.MANUAL,
        "FSDP2's sharded state holds DTensors, which this code would pass on as whole tensors: it raises for them now",
        _ADVICE.replace("Keep the test", "Write what is to be done with them in the place of the error. Keep the test"),
        within=makers(migration),
        raises=True,
    )
    patch = refusal(view, test, migration.use(outcome, view, DTENSOR, site.node))
    if patch is None:
        return None
    outcome.patches.append(patch)
    return outcome


def _is_from_file(view: FileView, test: ast.Call) -> bool:
    return any(isinstance(value, Opaque) and value.name == "torch.load" for value in view.values(test.args[0]))


def _rewrite(site: Site, migration: Migration, reads: list[ast.expr]) -> Outcome:
    view = site.view
    outcome = Outcome(
        Level.REVIEW,
        "the test asks for DTensor, whose to_local() is this rank's part; a ShardedTensor from a file of the old program is "
        "none, and to_local() is empty where a rank has no part, which local_shards()[0] did not allow",
    )
    why = "sharded state of FSDP2 holds DTensors"
    outcome.patches.append(view.replace(site.node, migration.use(outcome, view, DTENSOR, site.node), why))
    for read in reads:
        value = next(node for node in ast.walk(read) if isinstance(node, ast.Attribute) and node.attr.startswith("local_"))
        outcome.patches.append(view.replace(read, (view.keep(value.value), ".to_local()"), why))
    return outcome


_LOCAL = """\
import torch
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


def count(model: FSDP):
    total = 0
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state = model.state_dict()
    for tensor in state.values():
        if isinstance(tensor, ShardedTensor):
            tensor = tensor.local_tensor()
        total += tensor.numel()
    return total
"""
_COUNTED = """\
import torch
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor


def count(model: FSDPModule):
    total = 0
    state = get_model_state_dict(model)
    for tensor in state.values():
        if isinstance(tensor, DTensor):
            tensor = tensor.to_local()
        total += tensor.numel()
    return total
"""
_PLACED = """\
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


def sizes(model: FSDP):
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state = model.state_dict()
    return [t.metadata().shards_metadata for t in state.values() if isinstance(t, ShardedTensor)]
"""
_JOINED = """\
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


def take(model: FSDP):
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        return model.state_dict()


def join(value, parts):
    if isinstance(value, ShardedTensor):
        return place([shard for part in parts for shard in part.local_shards()])
    return value
"""
_REFUSED = """\
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor


def take(model: FSDPModule):
    return get_model_state_dict(model)


def join(value, parts):
    if isinstance(value, ShardedTensor):
        return place([shard for part in parts for shard in part.local_shards()])
    elif isinstance(value, DTensor):
        raise NotImplementedError("sharded state of FSDP2 (DTensors) is not handled here")
    return value
"""
_BOTH = """\
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.tensor import DTensor


def local(tensor):
    if isinstance(tensor, ShardedTensor):
        return tensor.local_tensor()
    elif isinstance(tensor, DTensor):
        return tensor.to_local()
    return tensor
"""

RULE = Rule(
    id="FS418",
    title="ShardedTensor",
    why=(
        "The sharded state of FSDP1 holds ShardedTensors, that of FSDP2 DTensors: a test for the one turns false for the other "
        "and the code goes on with the whole tensor's shape and this rank's rows. The two share neither methods nor metadata."
    ),
    symbols=tuple(f"torch.distributed._shard.sharded_tensor{end}" for end in ("", ".*")),
    roles=("call", "keyword", "use", "reference", "annotation", "isinstance", "base", "hazard"),
    check=check,
    find=asked_by_name,
    sources=("https://docs.pytorch.org/docs/stable/distributed.tensor.html",),
    examples=(
        Example(_LOCAL, _COUNTED, Level.REVIEW),
        Example(_PLACED, _PLACED, Level.MANUAL, note="how a DTensor is divided is said in other words"),
        Example(_JOINED, _REFUSED, Level.MANUAL, note="what takes tensors apart is left to a person, and raises until then"),
        Example(_BOTH, _BOTH, Level.OK, note="what handles both stays"),
    ),
)
