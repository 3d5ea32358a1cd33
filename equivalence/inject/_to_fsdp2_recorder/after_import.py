"""Run something right after a module has been imported.

A training script writes `from torch.nn.utils import clip_grad_norm_`: what is to be seen has to be replaced before that
line and after torch is complete, that is at the end of `import torch` itself. Modules that torch loads on
demand are waited for in the same way, so that a script which never uses them does not pay for them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class AfterImport(MetaPathFinder):
    """A finder that finds nothing itself: it adds actions to the end of the imports that others find."""

    def __init__(self) -> None:
        self._actions: dict[str, list[Callable[[], object]]] = {}
        self._forget: tuple[str, ModuleType] | None = None

    def __call__(self, name: str, action: Callable[[], object]) -> None:
        """Run `action` now if the module is imported already, else at the end of its import."""
        module = sys.modules.get(name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            action()
            return
        self._actions.setdefault(name, []).append(action)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def forget_at_next_import(self, name: str, module: ModuleType | None) -> None:
        """Take a module of ours out of `sys.modules`, which it cannot leave while it is still being imported."""
        if module is not None:
            self._forget = (name, module)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        self._forget_now()
        actions = self._actions.pop(fullname, None)
        if actions is None:
            return None
        spec = self._spec_of_others(fullname, path, target)
        if spec is None or spec.loader is None:
            self._actions[fullname] = actions
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for action in actions:
                action()

        spec.loader.exec_module = exec_module
        return spec

    def _spec_of_others(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
        return None

    def _forget_now(self) -> None:
        if self._forget is None:
            return
        name, module = self._forget
        self._forget = None
        if sys.modules.get(name) is module:
            del sys.modules[name]


after_import = AfterImport()
