"""Variants of a program: refactorings at random places, one after the other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from .kinds import KINDS
from .project import Place, Project, Refactoring

# Code that a migration has to do with; most refactorings go there.
CONCERNED = re.compile(
    r"FSDP|DDP|Distributed|FullyShard|fsdp|ddp|wrap|polic|Mixed|Strateg|state_dict|StateDict|no_sync|summon|full_param|clip_grad"
    r"|optim|\bmodel|\bnet\b|\.module\b|rank|is_main|master|torch\.save|torch\.load|checkpoint|ckpt"
)
PREFERENCE = 5


@dataclass(frozen=True)
class Step:
    """A refactoring that was done, and the first line of the code it concerned."""

    kind: str
    path: str
    near: str


def places(kind: Refactoring, project: Project, seed: int) -> list[Place]:
    """Where a refactoring may be done."""
    return list(kind(project, Random(seed)))


def done(kind: Refactoring, project: Project, seed: int, number: int) -> Project | None:
    """The program after a refactoring at the place of this number, of those that `places` lists for the seed."""
    going = kind(project, Random(seed))
    try:
        next(going)
        for _ in range(number):
            next(going)
        going.send(True)
    except StopIteration as end:
        return end.value
    raise AssertionError(f"a refactoring went on after it was sent to a place: {kind.__name__}")  # pyright: ignore


def compose(project: Project, rng: Random, length: int, kinds: Sequence[str] = tuple(KINDS)) -> tuple[Project, list[Step]]:
    """A program after `length` refactorings, or fewer where no more can be done; the same for the same generator."""
    steps: list[Step] = []
    for _ in range(8 * length):
        if len(steps) == length:
            break
        name, seed = rng.choice(kinds), rng.getrandbits(32)
        found = places(KINDS[name], project, seed)
        if not found:
            continue
        weights = [PREFERENCE if CONCERNED.search(place.near) else 1 for place in found]
        number = rng.choices(range(len(found)), weights)[0]
        after = done(KINDS[name], project, seed, number)
        if after is not None and after != project:
            project = after
            near = found[number].near.strip().split("\n")[0]
            steps.append(Step(name, found[number].path, near[:120]))
    return project, steps
