"""FS502: copies of models, and loops that write one model's tensors from another's."""

from __future__ import annotations

import ast

import libcst as cst

from ..findings import Level
from ..flow.values import ClassValue, Constant
from ..migration import Migration
from ..queries.assignments import assigned_values
from ..queries.copied_models import copies_model, copies_wrapper
from ..queries.file import File
from ..queries.order import is_before_wrap
from ..queries.saved_models import TRACE, WRITERS, given_to, is_writer, saved_models
from ..queries.summoned import summoned_around
from ..queries.whole_copies import keeps_whole_copies
from ..queries.zipped_tensors import written_tensor, zipped_target
from ..rewrites.changes import replace
from ..rewrites.helper_calls import around, call_instead
from ..rewrites.templates import argument
from ..rule import Example, Outcome, Rule
from ..sites import IN_PLACE, Site, parameters_in


def plain(site: Site, migration: Migration) -> Outcome | None:
    """A plain copy with whole parameters, as a copy of DDP's module was; zipped tensors laid out as those written."""
    assert site.call is not None
    if site.symbol == IN_PLACE or site.member == "zip":
        if migration.acts_whole(None, site.file.path):
            return None  # a tensor takes what it is written from as it is laid out itself
        return _written_from(site, migration) if site.symbol == IN_PLACE else _zipped(site, migration)
    if is_writer(site.symbol):
        return _saved(site, migration)
    if not copies_model(migration.sharding, site.file, site.call, migration.runs_before_wraps, migration.is_fresh):
        return None
    if migration.is_copy_left(site.file, site.call):
        return Outcome("the wrap lets copies of its model be plain ones, with whole parameters", level=Level.OK)
    name = migration.helper(site, "wrapped_copy" if copies_wrapper(migration.sharding, site.file, site.call) else "plain_copy")
    return Outcome("models of FSDP2 cannot be deep-copied: a plain copy with whole parameters is made",
                   [call_instead(site.file, site.call, name)])  # fmt: skip


def _saved(site: Site, migration: Migration) -> Outcome | None:
    """``torch.save(model, path)``, ``pickle.dump({"net": net}, file)``: what is written is plain and whole."""
    assert site.call is not None
    if migration.runs_before_wraps(site.file, site.call):
        return None
    written = [value for value in given_to(site.call) if _holds_sharded(site, migration, value)]
    if not written:
        return None
    is_traced = site.symbol == TRACE
    name = migration.helper(site, "to_trace" if is_traced else "as_plain")
    message = "models of FSDP2 cannot be traced: a plain copy is, which has the model's own buffers" if is_traced else _PICKLED
    return Outcome(message, [around(site.file, value, f"{name}({{it}})") for value in written])


_PICKLED = "models of FSDP2 cannot be pickled: plain copies with whole parameters are saved"


def _holds_sharded(site: Site, migration: Migration, value: ast.expr) -> bool:
    found = saved_models(migration.sharding, site.file, value)
    return any(not is_before_wrap(migration.program, file, m, migration.sharding.of(file, m)) for file, m in found)


def _written_from(site: Site, migration: Migration) -> Outcome | None:
    """``average.mul_(d).add_(p.data)``: what stands for a parameter is laid out as the tensor that is written."""
    call = site.call
    assert call is not None and isinstance(call.func, ast.Attribute)
    target = written_tensor(call.func.value)
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    sources = [p for value in given for p in parameters_in(site.file, value)
               if target is not None and not _same(p, target) and not _has_layout(site.file, p)]  # fmt: skip
    if target is None or not sources or _is_laid_out(site, migration):
        return Outcome("both are of the same model", level=Level.OK)
    is_whole = isinstance(target, ast.Subscript) and all(_is_summoned(site.file, source) for source in sources)
    if is_whole or (_is_summoned(site.file, target) and all(_is_whole_copy(site, migration, source) for source in sources)):
        return Outcome("what a tensor is written from is whole here", level=Level.OK)
    name = migration.helper(site, "laid_out_like")
    template = f"{name}({{it}}, {ast.unparse(target)})"
    changes = [around(site.file, source, template) for source in sources]
    if "fsdp1" in migration.wrapper_kinds and parameters_in(site.file, target) and not _is_summoned(site.file, target):
        return Outcome(_STALE, changes, Level.REVIEW)
    return Outcome("what a tensor is written from is laid out as it is: sharded or whole", changes)


def _has_layout(file: File, source: ast.expr) -> bool:
    """Whether an earlier run has put a tensor into the call that lays it out."""
    call = file.parents[source]
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "laid_out_like"


def _is_summoned(file: File, source: ast.expr) -> bool:
    """Whether a parameter is of a loop over a model, inside of a context that has made that model's parameters whole."""
    base = source
    while isinstance(base, (ast.Attribute, ast.Call, ast.Subscript)):
        base = base.func if isinstance(base, ast.Call) else base.value
    for loop in (a for a in file.ancestors(source) if isinstance(a, ast.For)):
        if any(ast.dump(n) == ast.dump(base).replace("Load()", "Store()") for n in ast.walk(loop.target)):
            summoned = next((model for _, model in summoned_around(file, loop)), None)
            return summoned is not None and ast.unparse(loop.iter).startswith(f"{ast.unparse(summoned)}.")
    return False


def _is_whole_copy(site: Site, migration: Migration, source: ast.expr) -> bool:
    """Whether a tensor is one that an object keeps which copies parameters where they are whole: ``self.shadow[name]``."""
    while isinstance(source, (ast.Call, ast.Subscript)) or (isinstance(source, ast.Attribute) and source.attr == "data"):
        source = source.func if isinstance(source, ast.Call) else source.value
    if isinstance(source, ast.Name) and (assigned := assigned_values(site.file, source)):
        return all(_is_whole_copy(site, migration, value) for value in assigned)
    keepers = site.file.values(source.value) if isinstance(source, ast.Attribute) else []
    keepers = [one for one in keepers if not (isinstance(one, Constant) and one.value is None)]
    return bool(keepers) and all(keeps_whole_copies(migration.sharding, one) for one in keepers)


def _same(source: ast.expr, target: ast.expr) -> bool:
    return ast.unparse(source).removesuffix(".data") == ast.unparse(target).removesuffix(".data")


def _is_laid_out(site: Site, migration: Migration) -> bool:
    """Whether a loop around is over tensors that are laid out alike."""
    for around_it in site.file.ancestors(site.node):
        if isinstance(around_it, ast.For) and isinstance(around_it.iter, ast.Call):
            if site.file.external(around_it.iter.func) == "builtins.zip":
                return zipped_target(migration.sharding, site.file, around_it.iter) is not None
    return False


def _zipped(site: Site, migration: Migration) -> Outcome | None:
    call = site.call
    assert call is not None
    target = zipped_target(migration.sharding, site.file, call)
    if target is None or _are_plain(site.file, call, migration):
        return None
    name = migration.helper(site, "zip_like")

    def build(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Call)
        arguments = [*node.args]
        if target:
            last = arguments[-1].with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
            arguments = [*arguments[:-1], last, argument(str(target), "target")]
        return node.with_changes(func=cst.Name(name), args=arguments)

    change = replace(site.file, call, build)
    written = call.args[target]
    assert isinstance(written, ast.Call) and isinstance(written.func, ast.Attribute)
    if "fsdp1" in migration.sharding.of(site.file, written.func.value).wrappers:
        return Outcome(_STALE, [change], Level.REVIEW)
    return Outcome("what one model's tensors are written from is laid out as they are: sharded or whole", [change])


def _are_plain(file: File, call: ast.Call, migration: Migration) -> bool:
    """Whether all models whose tensors are zipped are surely still plain."""
    if migration.runs_before_wraps(file, call):
        return True
    models = [a.func.value for a in call.args if isinstance(a, ast.Call) and isinstance(a.func, ast.Attribute)]
    return all(migration.is_fresh(file, call, model) or _is_under_construction(file, model, migration) for model in models)


def _is_under_construction(file: File, model: ast.expr, migration: Migration) -> bool:
    """Whether a model is a part of a module whose constructor runs, and none that is seen to come out of a wrapper."""
    root, function = model, file.function(model)
    while isinstance(root, ast.Attribute):
        root = root.value
    around_it = file.enclosing_class(model)
    if around_it is None or not (isinstance(function, ast.FunctionDef) and function.name == "__init__"):
        return False
    if root is model or not (isinstance(root, ast.Name) and root.id == "self"):
        return False
    classes = [v for v in file.values(around_it) if isinstance(v, ClassValue)]
    found = migration.sharding.of(file, model)
    return any(map(migration.sharding.makes_modules, classes)) and (found.in_place or not found.wrappers)


_STALE = "a model in FSDP1 may have gone on with old weights after a forward without gradients; now it sees what is written here"


RULE = Rule(
    id="FS502",
    title="copies and averages of models",
    symbols=("copy.deepcopy", "builtins.zip", IN_PLACE, *WRITERS),
    roles=("call",),
    why="Models of FSDP2 refuse deepcopy and pickle, and plain tensors and DTensors refuse to be combined.",
    fallback=plain,
    examples=(
        Example(
            before=(
                "import copy\n"
                "\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = DDP(net, **options)\n"
                "    return model, copy.deepcopy(model)\n"
            ),
            after=(
                "from fsdp2_helpers import shard_like_ddp, wrapped_copy\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    return model, wrapped_copy(model)\n"
            ),
            level=Level.REVIEW,
        ),
        Example(
            before=(
                "import torch\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options, path):\n"
                "    model = DDP(net, **options)\n"
                "    torch.save({\"model\": model, \"step\": 3}, path)\n"
            ),
            after=(
                "import torch\n"
                "\n"
                "from fsdp2_helpers import as_plain, shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options, path):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    torch.save(as_plain({\"model\": model, \"step\": 3}), path)\n"
            ),
            level=Level.REVIEW,
        ),
        Example(
            before=(
                "import torch\n"
                "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
                "\n"
                "\n"
                "@torch.no_grad()\n"
                "def f(net, options, averages):\n"
                "    model = FSDP(net, **options)\n"
                "    for name, p in model.named_parameters():\n"
                "        averages[name].mul_(0.9).add_(p.data, alpha=0.1)\n"
            ),
            after=(
                "import torch\n"
                "\n"
                "from fsdp2_helpers import laid_out_like, shard_like_fsdp1\n"
                "\n"
                "\n"
                "@torch.no_grad()\n"
                "def f(net, options, averages):\n"
                "    model = shard_like_fsdp1(net, **options)\n"
                "    for name, p in model.named_parameters():\n"
                "        averages[name].mul_(0.9).add_(laid_out_like(p.data, averages[name]), alpha=0.1)\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
