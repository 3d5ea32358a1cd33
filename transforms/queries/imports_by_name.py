"""Which files code may import by names that it puts together or reads."""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import PurePosixPath

from .names_at_run_time import imports_by_name, of_repository
from .program import Program

_ANYTHING = re.compile(
    r"\b(spec_from_file_location|load_source|runpy|pydoc|walk_packages|iter_modules)\b"
    r"|^(?!\s*(?:from|import)\b).*\b(import_module|__import__)\b(?!\s*\()",
    re.MULTILINE,
)
"""What imports by paths or from lists; and a function that imports, handed on."""
_CALL = re.compile(r"\b(?:import_module|__import__)\s*\(\s*([^\n]*)")
_WRITTEN = re.compile(r"""(["'])[\w.]+\1\s*[,)]""")
_PREFIX = re.compile(r"""f?["']\.*(\w[\w.]*)(?:\{|["']\s*\+)""")


class ImportsByName:
    """Answers for the files of one repository: by what the imports that are put together are given."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._said: dict[str, bool] = {}

    def may_find(self, path: str) -> bool:
        """Whether some import by name may find a file: any, one below a folder that it says, or one that a text names."""
        pure = PurePosixPath(path)
        dotted = f".{'.'.join(pure.with_suffix('').parts)}."
        if self._finds_anything or any(f".{prefix}" in dotted for prefix in self._prefixes):
            return True
        return bool(self._importing) and self._is_said(pure.parent.name if pure.name == "__init__.py" else pure.stem)

    def may_find_script(self, path: str) -> bool:
        """The same of a file that is run: nobody imports one unless a text names it."""
        return bool(self._importing) and self._is_said(PurePosixPath(path).stem)

    def _is_said(self, name: str) -> bool:
        if name not in self._said:
            quoted = re.compile(rf"[\"'][^\"'\n]*(?<!\w){re.escape(name)}(?!\w)[^\"'\n]*[\"']")
            texts = self.program.all_texts.values()
            self._said[name] = self.program.is_said(name) or any(name in text and quoted.search(text) for text in texts)
        return self._said[name]

    @cached_property
    def _importing(self) -> list[str]:
        texts = [text for text in self.program.all_texts.values() if imports_by_name(self.program, text)]
        return [of_repository(self.program, text) for text in texts]

    @cached_property
    def _given(self) -> list[str]:
        """What imports are given."""
        return [given for text in self._importing for given in _CALL.findall(text)]

    @cached_property
    def _finds_anything(self) -> bool:
        """Whether some name comes from anywhere, as from the command line; configurations name classes in texts."""
        is_open = any(not _WRITTEN.match(given) and not _PREFIX.match(given) for given in self._given)
        return is_open or any(map(_ANYTHING.search, self._importing))

    @cached_property
    def _prefixes(self) -> set[str]:
        """What is in front of names that are put together: `models.` of `f"models.{name}"`."""
        found = map(_PREFIX.match, self._given)
        return {match[1] for match in found if match is not None}
