"""Under which names files import a module that are not read, since no model comes to them."""

from __future__ import annotations

import pytest
from to_fsdp2.transforms.engine import extract
from to_fsdp2.transforms.flow.flow import Flow
from to_fsdp2.transforms.queries.program import Program
from to_fsdp2.transforms.rewrites.import_styles import ImportStyles
from to_fsdp2.transforms.text.source import Source

MODULE = "project/app/parts/wrap.py"


@pytest.mark.parametrize(
    ("path", "text", "dotted"),
    [
        ("project/app/user.py", "from app.parts import (\n    other,\n    wrap,\n)\n", True),
        ("project/run.py", "import app.parts.wrap as tools\n", True),
        ("project/run.py", "from app.parts.wrap import shard\n", True),
        ("elsewhere/run.py", "from app.parts.wrap import shard\n", False),
        ("project/app/parts/run.py", "import wrap\n", False),
    ],
)
def test_the_helpers_are_imported_as_the_module_is(path: str, text: str, dotted: bool) -> None:
    texts = {MODULE: "def shard(net):\n    return net\n", path: text}
    facts = [extract(Source.decode(MODULE, texts[MODULE].encode()))]
    program = Program(facts, lambda name: Source.decode(name, texts[name].encode()), Flow(facts), list(texts))
    style = ImportStyles(program).of(MODULE)
    assert (style.spelling(style.folder) == "fsdp2_helpers") == (not dotted)


@pytest.mark.parametrize(("imported", "is_bare"), [("from trainer import Own", True), ("from large.trainer import Own", False)])
def test_a_relative_import_that_leads_nowhere_makes_no_package_of_what_scripts_import_bare(imported: str, is_bare: bool) -> None:
    script = "large/run.py" if is_bare else "run.py"
    trainer = "def shard(net):\n    return net\n\n\nif False:\n    from .generated import other\n"
    texts = {"large/trainer.py": trainer, script: f"{imported}\n\nif __name__ == '__main__':\n    Own()\n"}
    facts = [extract(Source.decode(path, text.encode())) for path, text in texts.items()]
    program = Program(facts, lambda name: Source.decode(name, texts[name].encode()), Flow(facts), list(texts))
    style = ImportStyles(program).of("large/trainer.py")
    assert (style.spelling(style.folder) == "fsdp2_helpers") == is_bare
