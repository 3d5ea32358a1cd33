"""Whether every computation with parameters is right as it is, or by an edit where it stands.

Then reviewers see what is gathered at its place, and the wrap needs no ``compute_as_whole``, which answers for code that
nobody sees. One place without such an answer is enough to need it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from ..flow.library import TENSORS, is_optimizer
from ..flow.values import Constant, Derived
from ..queries.answers import Answer
from ..queries.file import File
from ..queries.group_reads import is_setting
from ..queries.kept_tensors import is_of_kept
from ..queries.local_values import local_value
from ..queries.number_reads import values_held
from ..queries.packages import ASK_FOR_GRADIENTS, strange_packages
from ..queries.parameter_math import IsBefore, computations, is_in_module
from ..queries.sharding import ShardingQueries
from ..queries.whole_reads import whole_read
from ..queries.zipped_tensors import written_tensor, zipped_target
from ..sites import DATA, IN_PLACE, NUMBER, OPTIMIZER_STEP, PARAMETER, Site, parameters_in

_OF_TENSORS = frozenset({NUMBER, PARAMETER, IN_PLACE, DATA})
_READ = frozenset({"norm", "vector_norm", "sum", "mean", "std", "var", "max", "min", "amax", "amin", "median", "dot", "item",
                   "tolist", "numpy", "float", "int", "bool"})  # fmt: skip

Sites = Mapping[str, Sequence[Site]]
IsHeld = Callable[[File, ast.AST], bool | None]
"""Whether a rank that comes to a place holds all models whole; None for places where every rank comes, and may gather."""


_CLIPS_BY_LAYER = re.compile(r"\bagc\b|adaptive_clip")
"""What timm's functions are told by options: they compare norms of rows of gradients with those of parameters."""


class Computations:
    """What the code of some files computes with parameters and gradients outside of forwards, or reads off them."""

    def __init__(
        self, sharding: ShardingQueries, sites: Sites, paths: Sequence[str], is_before: IsBefore, is_held: IsHeld
    ) -> None:
        self.sharding = sharding
        self._is_before = is_before
        self._is_held = is_held
        self.files = [sharding.program.file(path) for path in paths]
        found = [site for path in paths for site in sites.get(path, ())]
        self.sites = [site for site in found if site.symbol in _OF_TENSORS and not is_before(site.file, site.node)]
        self.places = list(computations(sharding, paths, is_before))
        clips = any(_CLIPS_BY_LAYER.search(file.source.text) for file in self.files)
        self.of_others = clips or bool(strange_packages(self.files) & ASK_FOR_GRADIENTS)
        self._in_place = {site.node for site in self.sites if site.symbol == IN_PLACE}
        self._assigned = {site.node for site in self.sites if site.symbol == DATA}
        self._whole_steps = {site.node for site in found if site.symbol == OPTIMIZER_STEP}

    def exist(self) -> bool:
        """Whether there may be any."""
        return bool(self.sites or self.places or self.of_others)

    def are_answered_in_place(self) -> bool:
        """Whether an edit where it stands, or none, makes each of them right."""
        if self.of_others:
            return False
        return all(self._is_right(*place) for place in self.places) and all(map(self._is_site_right, self.sites))

    def _is_right(self, file: File, node: ast.expr) -> bool:
        held = self._is_held(file, node)
        return self._is_whole_here(file, node) or (held is None and self._is_answered(file, node))

    def _is_whole_here(self, file: File, node: ast.AST) -> bool:
        return bool(self._is_held(file, node)) and not is_of_kept(file, node)

    def _is_site_right(self, site: Site) -> bool:
        held = self._is_held(site.file, site.node)
        if self._is_whole_here(site.file, site.node):
            return True
        return (held is None or _reads_statistic(site)) and self._is_site_answered(site)

    def write_parameters(self) -> bool:
        """Whether some may write a sharded parameter, which has to be the one that an optimizer knows, and no gathered copy."""
        if any(site.symbol == DATA for site in self.sites):
            return True
        written = [(site.file, site.node) for site in self.sites if site.symbol == IN_PLACE]
        written += [(file, a) for file, node in self.places for a in file.ancestors(node) if _is_in_place(a)]
        return any(not self._is_surely_plain(file, call) for file, call in written)

    def _is_surely_plain(self, file: File, call: ast.AST) -> bool:
        """Whether what a call writes is a gradient, or no sharded model's."""
        assert isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        target = written_tensor(call.func.value)
        if target is None or any(isinstance(n, ast.Attribute) and n.attr == "grad" for n in ast.walk(target)):
            return target is not None
        owners = [v.owner for v in file.values(target) if isinstance(v, Derived)]
        return bool(owners) and self.sharding.of_owners(owners).answer is Answer.NO  # type: ignore[arg-type]

    def reads_whole(self, file: File, node: ast.AST | None) -> bool:
        """Whether what is gathered for a read has to be: code outside of forwards and optimizers computes with the tensor."""
        return any(node is place and not self._is_in_optimizer(file, place) for of, place in self.places if of is file)

    def _is_answered(self, file: File, node: ast.expr) -> bool:
        if node.__class__ is ast.Attribute and getattr(node, "attr", "") == "state":
            return False
        if self._is_in_optimizer(file, node) or whole_read(file, node) is not None:
            return True
        return self._is_written_alike(file, node) or _is_written_by_numbers(file, node)

    def _is_site_answered(self, site: Site) -> bool:
        if site.symbol == NUMBER:
            assert site.receiver is not None
            if _reads_statistic(site):
                return self._reads_statistics_whole
            reads = [n for n in ast.walk(site.receiver) if isinstance(n, ast.expr)]
            return any(whole_read(site.file, n) is not None for n in reads if (site.file, n) in self.places)
        if site.symbol == IN_PLACE:
            return self._is_laid_out(site.file, site.node)
        return site.symbol == DATA and self._is_written_alike(site.file, site.node)  # type: ignore[arg-type]

    @cached_property
    def _reads_statistics_whole(self) -> bool:
        """Whether each number that is seen to be computed from a parameter is computed from what is read whole."""
        calls = [(file, call) for file in self.files for call in file.nodes(ast.Call) if _gives_statistic(file, call)]
        return all(self._reads_whole(file, call) for file, call in calls)

    def _reads_whole(self, file: File, call: ast.Call) -> bool:
        is_own = bool(self.sharding.program.callees(file, call))  # what is computed inside is asked about there
        if is_own or is_in_module(self.sharding, file, call) or self._is_in_optimizer(file, call):
            return True
        if self._is_before(file, call):
            return True
        if self._is_held(file, call):
            return not is_of_kept(file, call)
        given = [*call.args, *([call.func.value] if isinstance(call.func, ast.Attribute) else [])]
        return all(self._is_read_whole(file, tensor) for tensor in given if _is_tensor(file, tensor))

    def _is_read_whole(self, file: File, tensor: ast.expr) -> bool:
        parts = (n for n in ast.walk(tensor) if (file, n) in self.places)
        return any(whole_read(file, part) is not None for part in parts)  # type: ignore[arg-type]

    def _is_in_optimizer(self, file: File, node: ast.AST) -> bool:
        """Whether a place is in an optimizer's class, whose step meets whole parameters (FS416), or computes by element there."""
        around = file.enclosing_class(node)
        if around is None or not any(is_optimizer(file.external(base) or "") for base in around.bases):
            return False
        if any(member in self._whole_steps for member in around.body):
            return True
        calls = [a for a in file.ancestors(node) if isinstance(a, ast.Call)]
        names = {a.func.attr if isinstance(a.func, ast.Attribute) else getattr(a.func, "id", "") for a in calls}
        return names.isdisjoint(_READ)

    def _is_written_alike(self, file: File, node: ast.expr) -> bool:
        """Whether a tensor is written from others that are laid out as it is, or that FS502 lays out so."""
        above = [node, *file.ancestors(node)]
        call = next((a for a in above if a in self._in_place), None)
        if call is not None:
            return self._is_laid_out(file, call)
        statement = file.statement(node)
        if not _writes(statement):
            return False
        if isinstance(statement, ast.Assign) and statement.targets[0] not in self._assigned:
            return False  # `q.data = x` is without effect where q is sharded, and FS709 has to know of it
        return self._loop_target(file, node) is not None or _is_written_from_itself(file, statement)

    def _is_laid_out(self, file: File, call: ast.AST) -> bool:
        assert isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        if not isinstance(file.parents[call], ast.Expr):
            outer = next(a for a in file.ancestors(call) if not isinstance(a, (ast.Attribute, ast.Call)))
            if not isinstance(outer, ast.Expr):
                return False
        return self._loop_target(file, call) is not None or (
            written_tensor(call.func.value) is not None
            and any(True for given in (*call.args, *(k.value for k in call.keywords)) for _ in parameters_in(file, given))
        )

    def _loop_target(self, file: File, node: ast.AST) -> int | None:
        """Which of the tensors that a loop around zips it writes."""
        for loop in (a for a in file.ancestors(node) if isinstance(a, ast.For)):
            zipped = loop.iter
            if isinstance(zipped, ast.Call) and file.external(zipped.func) == "builtins.zip":
                return zipped_target(self.sharding, file, zipped)
        return None


def _reads_statistic(site: Site) -> bool:
    """Whether a number is read off what was computed from tensors, and not off a parameter or gradient itself."""
    if site.symbol != NUMBER or site.receiver is None:
        return False
    values = [*site.file.values(site.receiver), *(v for held in values_held(site.file, site.receiver) for v in held)]
    return {v.kind for v in values if isinstance(v, Derived) and v.kind in TENSORS} == {"statistic"}


def _gives_statistic(file: File, call: ast.Call) -> bool:
    is_in_place = isinstance(call.func, ast.Attribute) and call.func.attr.endswith("_")
    return not is_in_place and any(isinstance(v, Derived) and v.kind == "statistic" for v in file.values(call))


def _is_tensor(file: File, node: ast.expr) -> bool:
    return any(isinstance(v, Derived) and v.kind in ("parameters", "gradients") for v in file.values(node))


def _is_written_from_itself(file: File, statement: ast.stmt) -> bool:
    """Whether ``p.data = p.data * 0.9`` names no other tensor."""
    if not isinstance(statement, ast.Assign):
        return False
    written = ast.unparse(statement.targets[0])
    names = [n for n in ast.walk(statement.value) if isinstance(n, ast.Name | ast.Attribute) and _is_tensor(file, n)]
    return all(written.startswith(ast.unparse(name)) for name in names)


def _is_in_place(node: ast.AST) -> bool:
    name = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
    return name.endswith("_") and not name.endswith("__")


def _writes(statement: ast.stmt) -> bool:
    """Whether a statement writes a tensor: ``p.copy_(q)`` or ``p.data = p.data * m + q.data``."""
    if isinstance(statement, ast.Expr):
        called = statement.value.func if isinstance(statement.value, ast.Call) else None
        return isinstance(called, ast.Attribute) and called.attr.endswith("_")
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if not targets or not all(isinstance(target, ast.Attribute) and target.attr == "data" for target in targets):
        return False
    kinds = (ast.BinOp, ast.operator, ast.Name, ast.Attribute, ast.Constant, ast.UnaryOp, ast.unaryop, ast.expr_context)
    return all(isinstance(inner, kinds) for inner in ast.walk(statement.value))  # type: ignore[union-attr]


def _is_written_by_numbers(file: File, node: ast.expr) -> bool:
    """Whether a tensor itself is written in place by numbers: ``p.grad.data.mul_(factor)``."""
    tensor: ast.expr = node
    while _is_of_same(outer := file.parents[tensor]):
        tensor = outer  # type: ignore[assignment]
    call = file.parents[outer]
    if not (isinstance(outer, ast.Attribute) and isinstance(call, ast.Call) and call.func is outer):
        return False
    if outer.attr not in ("mul_", "div_", "clamp_", "zero_") or not isinstance(file.parents[call], ast.Expr):
        return False
    return all(_is_number(file, given) for given in (*call.args, *(keyword.value for keyword in call.keywords)))


def _is_of_same(node: ast.AST) -> bool:
    """Whether an expression is the tensor that it reads ``.data`` of, or that it calls ``detach()`` of."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "detach"
    return isinstance(node, ast.Attribute) and node.attr in ("data", "detach")


def _is_number(file: File, node: ast.expr, depth: int = 3) -> bool:
    """Whether an expression is one number for all elements: a constant, a setting, or computed from such or from norms."""
    if isinstance(node, ast.Constant) or is_setting(file, node):
        return True
    if isinstance(node, ast.BinOp | ast.UnaryOp | ast.IfExp):
        return all(_is_number(file, part, depth) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr))
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return name in ("item", "len") or (name in _OF_NUMBERS and all(_is_number(file, given, depth) for given in node.args))
    values = file.values(node)
    if values and all(isinstance(v, Constant) or (isinstance(v, Derived) and v.kind == "statistic") for v in values):
        return True
    assigned = local_value(file, node) if isinstance(node, ast.Name) and depth else None
    if assigned is not None:
        return _is_number(file, assigned.value, depth - 1)
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    return not values and _NUMBERS.fullmatch(name) is not None


_OF_NUMBERS = frozenset({"min", "max", "float", "int", "abs", "sqrt", "clamp", "pow", "exp", "round"})
_NUMBERS = re.compile(
    r"(?i)(\w*_)?(lr|rate|decay|alpha|beta\d?|tau|momentum|coef\w*|scale|factor|eps\w*|ratio|rho|gamma|m|size|steps|count|max_norm|clip\w*)"
)
"""How numbers are called that come from elsewhere."""
