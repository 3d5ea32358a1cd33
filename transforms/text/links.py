"""Symbolic links of a repository: other paths of its files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping


def other_paths(links: Mapping[str, str], paths: Collection[str]) -> Iterator[tuple[str, str]]:
    """Each other path of a file, with its own; ``links`` map paths of links to what they lead to, of folders with a slash."""
    known = frozenset(paths)
    for link, target in sorted(links.items()):
        if target.endswith("/"):
            yield from ((link + path.removeprefix(target), path) for path in sorted(known) if path.startswith(target))
        elif target in known:
            yield link, target
