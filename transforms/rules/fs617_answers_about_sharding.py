"""Branches elsewhere on an answer about FSDP1, behind which ranks combine their parts of parameters or gradients by hand."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.symbols import FSDP1
from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..training.passes import called_name, calls_in

_SYMBOL = f"{FSDP1}.answers"
_COMBINES = ("reduce", "gather")


def find(migration: Migration) -> Iterator[Site]:
    """Such branches, by the name of the function or property that answers."""
    for name in sorted(_answers(migration)):
        for view in migration.program.views_with(name):
            for branch in view.nodes(ast.If):
                asked = next((node for node in ast.walk(branch.test) if _last(node) == name), None)
                if asked is not None and _combines(branch):
                    yield Site(view, asked, f"{_SYMBOL}.{name}", "hazard")


def _answers(migration: Migration) -> set[str]:
    """The functions that answer with yes or no whether something is a model of FSDP1."""
    found: set[str] = set()
    for sites in migration.sites.values():
        for site in sites:
            function = site.view.function(site.node)
            if site.role == "isinstance" and site.symbol == FSDP1 and isinstance(function, ast.FunctionDef):
                if _is_yes_or_no(function):
                    found.add(function.name)
    return found


def _is_yes_or_no(function: ast.FunctionDef) -> bool:
    returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    return bool(returned) and all(
        (isinstance(value, ast.Constant) and isinstance(value.value, bool)) or isinstance(value, (ast.Call, ast.BoolOp))
        for value in returned
    )


def _last(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _combines(branch: ast.If) -> bool:
    return any(any(word in called_name(call) for word in _COMBINES) for call in calls_in(branch.body))


def check(site: Site, migration: Migration) -> Outcome:
    return Outcome(
        Level.REVIEW,
        f"behind {site.member} ranks combine by hand what they hold; of parameters, gradients and optimizer state each has a "
        "DTensor now, which is one tensor of all ranks: its norms and sums are those of the whole, combining them again "
        "counts them once a rank, and collectives refuse a DTensor itself",
        "Leave the combining out where DTensors come in, or hand it to_local() of each.",
    )


_BRANCH = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def is_sharded(model):
    return isinstance(model, FSDP)


def grad_norm(model):
    norms = [parameter.grad.norm() for parameter in model.parameters()]
    total = torch.stack(norms).norm() ** 2
    if is_sharded(model):
        dist.all_reduce(total)
    return total**0.5


def train(net, batch):
    model = FSDP(net)
    model(batch).sum().backward()
    return grad_norm(model)
"""

RULE = Rule(
    id="FS617",
    title="Answers about sharding behind which ranks combine by hand",
    why=(
        "Under FSDP1 a parameter and its gradient are this rank's part, a plain tensor, and a program that wants a norm of the "
        "whole reduces over ranks where a model is of FSDP1. Under FSDP2 they are DTensors, whose norm is that of the whole."
    ),
    symbols=(f"{_SYMBOL}.*",),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("https://docs.pytorch.org/docs/stable/distributed.tensor.html",),
    examples=(
        Example(
            _BRANCH,
            _BRANCH.replace("FullyShardedDataParallel as FSDP", "FSDPModule, fully_shard")
            .replace("isinstance(model, FSDP)", "isinstance(model, FSDPModule)")
            .replace("model = FSDP(net)", "fully_shard(net)\n    model = net"),
            Level.REVIEW,
        ),
    ),
)
