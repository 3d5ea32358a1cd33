"""Notices every optimizer that is built and every step that trains."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from .after_import import after_import
from .patching import Function, wrap
from .places import user_place


class OptimizerSteps:
    """Calls `before(optimizer)` and `after(optimizer, inner)` around the steps of the script's own optimizers.

    `inner` are optimizers that the step has stepped in turn: ZeroRedundancyOptimizer has one, which holds the state.
    """

    def __init__(
        self,
        before: Callable[[Optimizer], None],
        after: Callable[[Optimizer, list[Optimizer]], None],
        root: str | None,
    ) -> None:
        self._root = root
        self._built_at: weakref.WeakKeyDictionary[Optimizer, str] = weakref.WeakKeyDictionary()
        self._before = before
        self._after = after
        self._created: list[weakref.ref[Optimizer]] = []
        self._nesting: list[Optimizer] = []
        self._inner: list[Optimizer] = []
        self._filling_state = False
        self.created = 0

    def watch(self) -> None:
        """Start, before any optimizer exists."""
        wrap(Optimizer, "__init__", self._creating)
        register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: self._entering(optimizer))
        register_optimizer_step_post_hook(lambda optimizer, args, kwargs: self._leaving(optimizer))
        after_import("torch.distributed.checkpoint.state_dict", self._watch_state_dict_helpers)

    def alive(self) -> Iterator[Optimizer]:
        """The optimizers that exist, in the order of their construction."""
        for reference in self._created:
            optimizer = reference()
            if optimizer is not None:
                yield optimizer

    def built_at(self, optimizer: Optimizer) -> str | None:
        """The line of the script on which the optimizer was built."""
        return self._built_at.get(optimizer)

    def owners_of(self, parameters: set[int]) -> list[Optimizer]:
        """The optimizers that hold most of the parameters with these ids; of several, nobody knows which will step."""
        common = [
            (sum(id(p) in parameters for group in optimizer.param_groups for p in group["params"]), optimizer)
            for optimizer in self.alive()
        ]
        most = max((count for count, _ in common), default=0)
        return [optimizer for count, optimizer in common if count == most > 0]

    def _creating(self, original: Function) -> Function:
        def init(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self._created.append(weakref.ref(optimizer))
            self._built_at[optimizer] = user_place(self._root)
            self.created += 1

        return init

    def _watch_state_dict_helpers(self) -> None:
        import torch.distributed.checkpoint.state_dict as helpers

        def filling(original: Function) -> Function:
            def init_optim_state(*args: Any, **kwargs: Any) -> None:
                self._filling_state = True
                try:
                    original(*args, **kwargs)
                finally:
                    self._filling_state = False

            return init_optim_state

        # They fill the state of a fresh optimizer by a step with zero gradients, which is no training.
        wrap(helpers, "_init_optim_state", filling)

    def _entering(self, optimizer: Optimizer) -> None:
        if self._filling_state:
            return
        self._nesting.append(optimizer)
        if len(self._nesting) == 1:
            self._inner = []
            self._before(optimizer)

    def _leaving(self, optimizer: Optimizer) -> None:
        # A step that raised has left its entry behind, on top of the one that ends now.
        if all(entered is not optimizer for entered in self._nesting):
            return
        while self._nesting.pop() is not optimizer:
            pass
        if self._nesting:
            self._inner.append(optimizer)
        else:
            self._after(optimizer, self._inner)
