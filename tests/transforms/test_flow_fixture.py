"""A repository with every form in which a wrapped model travels: each use found, and none falsely.

A line of the fixture that says ``# use`` holds one use of a wrapped model (``# use use`` two); other lines hold none.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from to_fsdp2.transforms.engine import extract
from to_fsdp2.transforms.migration import Migration, Options
from to_fsdp2.transforms.program import Program
from to_fsdp2.transforms.text.source import Source

ROOT = Path(__file__).parent.parent / "fixtures" / "flow"


@pytest.fixture(scope="module")
def migration() -> Migration:
    sources = {}
    for path in sorted(ROOT.rglob("*.py")):
        label = path.relative_to(ROOT).as_posix()
        sources[label] = Source.read(label, path.read_bytes())
    return Migration.of(Program([extract(source) for source in sources.values()], sources.__getitem__), Options())


def test_every_use_is_found_and_none_falsely(migration: Migration) -> None:
    found = Counter(
        (path, site.node.lineno)  # pyright: ignore[reportAttributeAccessIssue]
        for path, sites in migration.sites.items()
        for site in sites
        if site.role in ("use", "dynamic")
    )
    expected: Counter[tuple[str, int]] = Counter()
    before: set[tuple[str, int]] = set()
    for path in sorted(ROOT.rglob("*.py")):
        label = path.relative_to(ROOT).as_posix()
        for number, line in enumerate(path.read_text().splitlines(), 1):
            marker = re.search(r"#((?: use)+)$", line)
            if marker:
                expected[label, number] = marker.group(1).count("use")
            elif line.endswith("# before"):
                before.add((label, number))
    assert sorted(k for k in expected if k not in found) == []
    assert sorted(k for k in found if k not in expected and k not in before) == []
    assert {k: found[k] for k in expected} == dict(expected)


def test_uses_before_the_wrap_are_known_to_be_before(migration: Migration) -> None:
    site = next(s for s in migration.sites["main.py"] if s.view.text(s.view.statement(s.node)) == "model.state_dict()")
    assert site.group is not None
    relations = {
        migration.order.relation((site.view, site.node), (wrap.view, wrap.node)) for wrap in site.group.wraps
    }
    assert "before" in relations and "after" not in relations


def test_uses_in_other_files_carry_their_provenance(migration: Migration) -> None:
    site = next(s for s in migration.sites["pkg/uses.py"] if s.symbol.endswith(".no_sync"))
    wrapped = next(v for v in site.values if type(v).__name__ == "Wrapped")
    chain = migration.program.provenance(site.view, site.node.value, wrapped)  # pyright: ignore
    assert "Shard(" in chain[0].text, "a chain starts at the wrap"
    assert chain[-1].file == "pkg/uses.py" and len({step.file for step in chain}) > 1


def test_names_that_are_not_torchs_are_no_sites(migration: Migration) -> None:
    assert not migration.sites.get("pkg/fake.py")
