"""Modules of helpers that another version of the tool wrote: what is written anew, and what people are told of the others."""

from __future__ import annotations

import ast

from ..transforms.rewrites.helper_place import features_left_out, held_names, is_current, is_untouched, module_text
from ..transforms.text.generated import is_generated


def rewritten(text: str) -> str | None:
    """A module as this version writes it; None where it is so, is no such module, or has what callers would miss.

    What somebody has changed is theirs. Callers miss a function that this version has no more, or that takes other arguments.
    """
    if not is_generated(text) or is_current(text) or not is_untouched(text):
        return None
    new = module_text(held_names(text), features_left_out(text))
    before, after = _functions(text), _functions(new)
    return new if before and all(after.get(name) == arguments for name, arguments in before.items()) else None


def note_on(name: str, text: str) -> str | None:
    """A line for people on a module, by its name, that is not what this version writes."""
    if not is_generated(text) or is_current(text):
        return None
    if rewritten(text) is not None:
        return f"{name} was written by another version of to-fsdp2; apply writes it anew"
    if is_untouched(text):
        return f"{name} was written by another version of to-fsdp2, with functions that this one has no more; it stays"
    return f"{name} was changed since to-fsdp2 wrote it; it stays as it is"


def _functions(text: str) -> dict[str, str]:
    """The functions and classes that others can import, each with its arguments."""
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return {}
    found: dict[str, str] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = ast.unparse(node.args)
        elif isinstance(node, ast.ClassDef):
            found[node.name] = ""
    return {name: arguments for name, arguments in found.items() if not name.startswith("_")}
