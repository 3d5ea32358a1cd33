"""Facts of many files, in this process or in several."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.context import BaseContext

from ..transforms.facts.facts import FileFacts
from ..transforms.findings import FileError
from .progress import Progress
from .worker import extract_files, extract_text, serve
from .workspace import Workspace

_SMALL = 400_000
"""Bytes that one process has done before a second one has started."""
_CHUNK = 250_000
"""Bytes that go to a worker at a time: long enough to be worth the message, short enough to share evenly."""

Extracted = FileFacts | FileError


def extract_all(workspace: Workspace, sizes: dict[str, int], jobs: int, progress: Progress) -> list[Extracted]:
    """One result per label of `sizes` (label → bytes), in the order of the labels."""
    progress.stage("reading", len(sizes))
    results: dict[str, Extracted] = {}
    for batch in _batches(workspace, sizes, jobs):
        for result in batch:
            results[_label_of(result)] = result
        progress.advance(len(batch))
    return [results[label] for label in sizes]


def _batches(workspace: Workspace, sizes: dict[str, int], jobs: int) -> Iterator[list[Extracted]]:
    root = str(workspace.root)
    for label in workspace.given.keys() & sizes.keys():
        yield [extract_text(label, workspace.given[label])]
    chunks = _chunks({label: size for label, size in sizes.items() if label not in workspace.given})
    if jobs == 1 or sum(sizes.values()) < _SMALL:
        for chunk in chunks:
            yield extract_files(root, chunk)
        return
    crashed: list[str] = []
    with _pool(min(jobs, len(chunks))) as pool:
        futures: dict[Future[list[Extracted]], list[str]] = {
            pool.submit(extract_files, root, chunk): chunk for chunk in chunks
        }
        for future in as_completed(futures):
            try:
                yield future.result()
            except BrokenProcessPool:
                crashed += futures[future]
    for label in crashed:
        yield [_extract_alone(root, label)]


def _extract_alone(root: str, label: str) -> Extracted:
    """For the files that were in flight when a worker died: the one that kills again is the one to name."""
    with _pool(1) as pool:
        try:
            return pool.submit(extract_files, root, [label]).result()[0]
        except BrokenProcessPool:
            return FileError(label, None, "Python crashed while reading it; it is probably nested too deeply")


@contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Worker processes, which end when the run is ended and do not outlive it."""
    pool = ProcessPoolExecutor(jobs, _context(), initializer=serve)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _chunks(sizes: dict[str, int]) -> list[list[str]]:
    chunks: list[list[str]] = []
    room = 0
    for label, size in sizes.items():
        if room <= 0:
            chunks.append([])
            room = _CHUNK
        chunks[-1].append(label)
        room -= size
    return chunks


def _context() -> BaseContext | None:
    # Forking takes milliseconds where a fresh interpreter takes a quarter of a second; no thread runs yet.
    return multiprocessing.get_context("fork") if "fork" in multiprocessing.get_all_start_methods() else None


def _label_of(result: Extracted) -> str:
    return result.file if isinstance(result, FileError) else result.path
