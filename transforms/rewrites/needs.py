"""What a program asks of models that were DDP's beside training them, so that the wrap has to see to it."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import cached_property

from ..queries.evaluations import Evaluations
from ..queries.file import File
from ..queries.late_optimizers import EVALUATIONS
from ..queries.parameter_math import IsBefore
from ..queries.sharding import ShardingQueries
from ..queries.state_takers import StateTakers
from ..sites import Site
from .computed_in_place import Computations, IsHeld
from .gradient_resets import resets_model


class Needs:
    """Answers for the files of one or several programs.

    ``is_before`` and ``is_held`` say of a place that no model is sharded there, or that all are held whole. ``can_edit`` is
    whether computations may be edited where they stand. ``blind``, nothing is known of values.
    """

    def __init__(
        self, sharding: ShardingQueries, sites: Mapping[str, Sequence[Site]], paths: Sequence[str], is_before: IsBefore,
        is_held: IsHeld, can_edit: bool, blind: bool,
    ) -> None:  # fmt: skip
        self._sharding, self._sites, self._paths = sharding, sites, paths
        self._is_before, self._is_held = is_before, is_held
        self._can_edit, self._blind = can_edit and not blind, blind

    @cached_property
    def computations(self) -> Computations:
        """What is computed with parameters outside of forwards."""
        return Computations(self._sharding, self._sites, self._paths, self._is_before, self._is_held)

    @cached_property
    def whole_math(self) -> bool:
        """Whether something may be computed so where no edit makes it right."""
        return self.computations.exist() and not (self._can_edit and self.computations.are_answered_in_place())

    @cached_property
    def parameter_writes(self) -> bool:
        """Whether edits in place write parameters, so that these have to be the sharded ones whenever that is."""
        return not self.whole_math and self.computations.exist() and self.computations.write_parameters()

    @cached_property
    def evaluation(self) -> bool:
        """Whether a sharded model may be run without gradients."""
        if self._blind:
            return self._sharding.program.mentions(EVALUATIONS)
        return Evaluations(self._sharding, self._is_apart).exist(self._paths)

    @cached_property
    def state_dicts(self) -> bool:
        """Whether somebody may take or load the state of a sharded model, or of its optimizer."""
        return self._blind or StateTakers(self._sharding, self._is_apart).exist(self._paths)

    @cached_property
    def gradient_resets(self) -> bool:
        """Whether modules' own `zero_grad` has to reach gradients of shards that are not registered."""
        sites = (site for path in self._paths for site in self._sites.get(path, ()))
        return any(resets_model(self._sharding, site) and not self._is_before(site.file, site.node) for site in sites)

    def _is_apart(self, file: File, node: ast.AST) -> bool:
        return self._is_before(file, node) or bool(self._is_held(file, node))
