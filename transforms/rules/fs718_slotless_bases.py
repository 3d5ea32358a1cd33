"""FS718: classes of models that name `ABC` or `Generic` in front of `nn.Module`."""

from __future__ import annotations

import ast

from ..findings import Level
from ..flow.values import ClassValue
from ..migration import Migration
from ..queries.file import File
from ..rewrites.changes import replace
from ..rewrites.templates import expression
from ..rule import Example, Outcome, Rule
from ..sites import Site

_SLOTLESS = ("abc.ABC", "typing.Generic", "typing.Protocol", "typing_extensions.Generic", "typing_extensions.Protocol")


def module_first(site: Site, migration: Migration) -> Outcome | None:
    """The same bases, the module in front: what follows it in the order of methods has none that a module has."""
    cls = site.file.parents[site.node]
    while isinstance(cls, (ast.Subscript, ast.Tuple)):
        cls = site.file.parents[cls]
    if not isinstance(cls, ast.ClassDef) or cls.keywords or not migration.wrapper_kinds:
        return None
    slotless = [base for base in cls.bases if _external(site.file, base) in _SLOTLESS]
    modules = [base for base in cls.bases if base not in slotless and _is_module(site.file, migration, base)]
    ordered = [*(base for base in cls.bases if base not in slotless), *slotless]
    first = next((base for base in cls.bases if base in slotless), None)
    if not modules or ordered == cls.bases or first is None or site.node not in ast.walk(first):
        return None
    pairs = zip(cls.bases, map(site.file.text, ordered), strict=True)
    changes = [replace(site.file, base, lambda _, text=text: expression(text)) for base, text in pairs]
    return Outcome("fully_shard takes modules whose class has the module's layout: that of its first base", changes)


def _external(file: File, base: ast.expr) -> str:
    return file.external(base.value if isinstance(base, ast.Subscript) else base) or ""


def _is_module(file: File, migration: Migration, base: ast.expr) -> bool:
    classes = [value for value in file.values(base) if isinstance(value, ClassValue)]
    return _external(file, base).startswith("torch.nn.") or any(map(migration.sharding.makes_modules, classes))


RULE = Rule(
    id="FS718",
    title="bases of models without a layout of their own",
    symbols=_SLOTLESS,
    roles=("base",),
    why="fully_shard changes a module's class; Python refuses it where ABC or Generic come before nn.Module (object layout).",
    fallback=module_first,
    examples=(
        Example(
            before=(
                "from abc import ABC, abstractmethod\n"
                "from torch import nn\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "class Net(ABC, nn.Module):\n"
                "    @abstractmethod\n"
                "    def forward(self, x): ...\n"
                "\n"
                "\n"
                "def f(net: Net, options):\n"
                "    return DDP(net, **options)\n"
            ),
            after=(
                "from abc import ABC, abstractmethod\n"
                "from torch import nn\n"
                "from fsdp2_helpers import shard_like_ddp\n"
                "\n"
                "\n"
                "class Net(nn.Module, ABC):\n"
                "    @abstractmethod\n"
                "    def forward(self, x): ...\n"
                "\n"
                "\n"
                "def f(net: Net, options):\n"
                "    return shard_like_ddp(net, **options)\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
