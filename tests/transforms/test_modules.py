"""Which file an import reads, as seen from another file."""

from __future__ import annotations

import pytest
from to_fsdp2.transforms.analysis.modules import ModuleTable

FILES = (
    "pkg/__init__.py", "pkg/copy.py", "pkg/models.py", "pkg/sub/__init__.py", "pkg/sub/queue.py", "pkg/sub/a.py",
    "logging/__init__.py", "src/lib/functools.py", "src/lib/layers.py", "scripts/train.py",
)  # fmt: skip


@pytest.mark.parametrize(
    ("importer", "module", "found"),
    [
        ("pkg/sub/a.py", "models", "pkg/models.py"),
        ("pkg/sub/a.py", "..copy", "pkg/copy.py"),
        ("pkg/sub/a.py", "pkg.copy", "pkg/copy.py"),
        ("scripts/train.py", "lib.functools", "src/lib/functools.py"),
        ("scripts/train.py", "layers", "src/lib/layers.py"),
        pytest.param("pkg/sub/a.py", "queue", "pkg/sub/queue.py", id="a script's own folder comes first"),
        pytest.param("pkg/sub/a.py", "logging", "logging/__init__.py", id="the root may be on the path"),
        pytest.param("pkg/sub/a.py", "copy", None, id="a package is not on the path"),
        pytest.param("scripts/train.py", "functools", None, id="any other folder is not, for all that is known"),
    ],
)
def test_names_of_the_standard_library_are_its_own_unless_a_file_surely_comes_first(
    importer: str, module: str, found: str | None
) -> None:
    index = ModuleTable(FILES).find(FILES.index(importer), module)
    assert (None if index is None else FILES[index]) == found
