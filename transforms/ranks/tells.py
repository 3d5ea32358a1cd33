"""What a call does besides computing: it writes files, which one rank may do at a time, prints, or waits for others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..analysis.values import FunctionValue
from ..training.passes import outside_name
from ..view import FileView
from .guards import GuardFinder

WRITES, PRINTS, MEETS = "writes", "prints", "meets"
_WRITES = (
    "torch.save", "builtins.open", "os.makedirs", "os.mkdir", "os.remove", "os.rename", "os.replace", "shutil.",
    "json.dump", "pickle.dump", "yaml.dump", "numpy.save",
)  # fmt: skip
_FILE_METHODS = frozenset(
    {"write", "writelines", "write_text", "write_bytes", "to_csv", "savefig", "save_pretrained", "mkdir", "save", "unlink"}
)
_ASKS = ("get_", "is_")
_PRINTS = ("builtins.print", "logging.", "wandb.", "tqdm.", "mlflow.")
_LOGGER = re.compile(r"(^|_)log(s|ger|ging)?$|writer$|wandb|tensorboard|^tb$|progress|^[pt]bar$|bar$", re.IGNORECASE)
_REPORT = re.compile(r"(log|add|set)_|(log|info|warn(ing)?|error|debug|exception|critical|print|flush|write)$")
_DEEPEST = 6


def tells_of(finder: GuardFinder, view: FileView, node: ast.AST) -> set[str]:
    """``writes``, ``prints`` and ``meets``, for what the calls in a piece of code and the functions they reach do.

    A function that all ranks call elsewhere may write here as well: a download into a cache copes with company.
    """
    found: set[str] = set()
    pending: list[tuple[FileView, ast.AST, int]] = [(view, node, 0)]
    seen: set[FunctionValue] = set()
    while pending:
        owner, place, depth = pending.pop()
        for call in ast.walk(place):
            if not isinstance(call, ast.Call):
                continue
            found.update(_told(owner, call))
            for callee in finder.program.callees(owner, call) if depth < _DEEPEST else ():
                if callee not in seen:
                    seen.add(callee)
                    inside = finder.program.function_node(callee)
                    if not finder.is_reached_by_all(*inside):
                        pending.append((*inside, depth + 1))
    return found


def _told(view: FileView, call: ast.Call) -> Iterator[str]:
    name = outside_name(view, call.func) or ""
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if name == "builtins.open" and not _is_for_writing(call):
        return
    if name.startswith("torch.distributed.") and not name.rpartition(".")[2].startswith(_ASKS):
        yield MEETS
    elif name.startswith(_WRITES) or (method in _FILE_METHODS and not name.startswith(_PRINTS)):
        yield WRITES
    elif name.startswith(_PRINTS) or _is_logger(call.func):
        yield PRINTS


def _is_for_writing(call: ast.Call) -> bool:
    modes = [*call.args[1:2], *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    return any(not isinstance(mode, ast.Constant) or not str(mode.value).startswith("r") for mode in modes)


def _is_logger(function: ast.expr) -> bool:
    """``logger.info``, ``self.writer.add_scalar``: a method that reports, of something that people call by such a name."""
    if not isinstance(function, ast.Attribute) or not _REPORT.match(function.attr):
        return False
    owner = function.value
    name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
    return bool(_LOGGER.search(name))
