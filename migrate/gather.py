"""Facts of the files that matter: those with a token of the old APIs, and what a wrapped model can reach from them.

A repository of ordinary size is read whole, as far as imports connect it. In a huge one (torch itself: everything
is connected to everything) reading starts at the files with a token, and goes on from wherever a model is seen.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..transforms.facts.facts import FileFacts
from ..transforms.findings import FileError
from ..transforms.flow.flow import Flow
from ..transforms.flow.reach import carriers
from .extraction import extract_all
from .imports import Neighbours
from .progress import Progress
from .workspace import Workspace

HUGE = 12_000_000
"""Bytes of connected files beyond which they are not all read."""


@dataclass
class Gathered:
    """What was read, and how it is linked where that had to be known to read on."""

    results: list[FileFacts | FileError]
    flow: Flow | None = None


def gather(
    workspace: Workspace, contents: Mapping[str, bytes], hits: set[str], imports: Mapping[str, set[str]],
    jobs: int, progress: Progress, traced: Collection[str] = (),
) -> Gathered:  # fmt: skip
    """Facts, or the reason why there are none, of every file that may hold a site or pass a model on.

    ``traced`` are files that are known to run together with those that hold a token.
    """
    neighbours = Neighbours(imports, workspace.links)
    reached = neighbours.connected({*hits, *traced}) | _imported_by_name(contents, hits, neighbours)
    sizes = {label: len(data) for label, data in contents.items() if label in reached}
    if sum(sizes.values()) <= HUGE:
        return Gathered(extract_all(workspace, sizes, jobs, progress))
    hits = {*hits, *traced}
    read: dict[str, FileFacts | FileError] = {}
    wanted = set(hits)
    flow: Flow | None = None
    while wanted:
        batch = {label: size for label, size in sizes.items() if label in wanted}
        for label, result in zip(batch, extract_all(workspace, batch, jobs, progress), strict=True):
            read[label] = result
        flow = None  # two at a time would take twice the memory
        facts = [found for _, found in sorted(read.items()) if isinstance(found, FileFacts)]
        flow = Flow(facts, paths=contents.keys(), links=workspace.links)
        wanted = _next(flow, neighbours, contents) - set(read)
    return Gathered([read[label] for label in sizes if label in read], flow)


def _imported_by_name(contents: Mapping[str, bytes], hits: set[str], neighbours: Neighbours) -> set[str]:
    """Files that may get models from wraps in a plugin: a file that no import statement names, and that is not run.

    The registry or configuration that imports it by its name may import them as well.
    """
    plugins = (label for label in hits if not neighbours.importers_of(label) and b"__main__" not in contents[label])
    if all(label.rpartition("/")[2].startswith(("test_", "conftest")) for label in plugins):
        return set()
    return {label for label, data in contents.items() if _MEMBERS.search(data)}


_MEMBERS = re.compile(
    rb"\.(?:module|no_sync|clip_grad_norm_|state_dict|load_state_dict|require_backward_grad_sync|summon_full_params)\b"
)


def _next(flow: Flow, neighbours: Neighbours, contents: Mapping[str, bytes]) -> set[str]:
    """Files that a carrier imports, or that import one and mention what it hands on."""
    wanted: set[str] = set()
    for index, names in carriers(flow).items():
        label = flow.files[index].path
        wanted |= neighbours.imported_by(label)
        mentions = [name.encode() for name in names]
        for other in neighbours.importers_of(label):
            if any(name in contents[other] for name in mentions):
                wanted.add(other)
    return wanted
