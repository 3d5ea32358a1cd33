"""Programs of one or several files, given as texts, and what becomes of them."""

from __future__ import annotations

from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.findings import Finding
from to_fsdp2.transforms.text.source import Source

HEAD = """import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


"""


def migrated(**files: str) -> dict[str, str]:
    """The new texts of files, by name without the ending."""
    return texts(files)


def helpers(**files: str) -> str:
    """The helper modules that are written beside files."""
    sources = {f"{name}.py": Source.decode(f"{name}.py", text.encode()) for name, text in files.items()}
    facts = [extract(source) for source in sources.values()]
    analysis = analyse(facts, sources.__getitem__, Options(target_torch=(2, 13)), paths=list(sources))
    return "".join(analysis.new_files.values())


def findings(**files: str) -> list[Finding]:
    """All that is said of files."""
    sources = {f"{name}.py": Source.decode(f"{name}.py", text.encode()) for name, text in files.items()}
    facts = [extract(source) for source in sources.values()]
    return analyse(facts, sources.__getitem__, Options(target_torch=(2, 13)), paths=list(sources)).findings


def texts(files: dict[str, str], blind: bool = False) -> dict[str, str]:
    sources = {f"{name}.py": Source.decode(f"{name}.py", text.encode()) for name, text in files.items()}
    facts = [extract(source) for source in sources.values()]
    options = Options(target_torch=(2, 13), blind=blind)
    analysis = analyse(facts, sources.__getitem__, options, paths=list(sources))
    assert not analysis.errors
    return {path.removesuffix(".py"): analysis.texts.get(path, sources[path].text) for path in sources}
