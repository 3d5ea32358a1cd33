"""FS308: methods of a model's own class."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence

import libcst as cst

from ..findings import Form, Level
from ..flow.values import Bound, Constant, Container, FunctionValue, Value
from ..migration import Migration
from ..queries.backwards import is_without_gradients, may_learn
from ..queries.called_on_plain import is_called_on_plain
from ..queries.compiled_functions import is_scripted
from ..queries.effects import edits_parameters, goes_by_own_state, only_asks, rebuilds_parameters, replaces_own_parts
from ..queries.own_forward import runs_forward_alone
from ..queries.past_ddp import LEARNS_APART, WHERE_SAME
from ..queries.uneven_loops import may_go_other_rounds
from ..rewrites.changes import replace
from ..rewrites.templates import argument, expression, with_argument
from ..rule import Example, Outcome, Rule
from ..sites import MODULE_METHODS, Site


def registered(site: Site, migration: Migration) -> Outcome | None:
    """The method with parameters gathered, as forward has them."""
    assert site.receiver is not None and site.sharding is not None
    if migration.is_self(site.file, site.receiver):
        return None  # whoever called the method around this one gathered for it
    if isinstance(site.receiver, ast.Call) and site.sharding.in_place:
        return None  # an object that is made here is still plain
    method = site.call.func if site.call is not None else site.node
    values = site.file.values(method)
    if values and not any(isinstance(value, (Bound, FunctionValue)) for value in values):
        return None
    if migration.is_before_wrap(site) or (not values and _may_be_anything(site)):
        return None
    if migration.is_held(site.file, site.node) and migration.guards.all_lead_to(site.file, site.node):
        return Outcome("whoever comes here holds the model whole", level=Level.OK)
    if is_called_on_plain(migration.sharding, site.file, site.receiver):
        return Outcome("a wrapper of DDP has no such method: the model is plain where it is called", level=Level.OK)
    if site.call is not None and only_asks(migration.program, site.file, site.call):
        return Outcome("it asks for names, shapes and counts: DTensors answer for the whole parameter", level=Level.OK)
    assert isinstance(method, ast.expr)
    reached = migration.program.callees(site.file, site.call) if site.call is not None else []
    called = [*values, *reached]
    if called and all(runs_forward_alone(migration.program, migration.sharding, value) for value in called):
        return Outcome("it computes by calling the model, which gathers", level=Level.OK)
    if not values and (_name(method) in _OF_CONTAINERS or _name(method).startswith("__")):
        return Outcome("it is a container's method, or one that copies and pickles", level=Level.OK)
    if site.call is not None and _name(method) == _SAVES and not values:
        return _with_state(site, migration, site.call)
    if not values and _name(method) in _NAMES:
        return Outcome("it gives names of parameters, and reads no numbers out of them", level=Level.OK)
    if not values and _name(method) in _OF_ENGINES and site.sharding.wrappers == {"ddp"}:
        return Outcome("it belongs to an engine in the model's place, or reads a state dict, which stays whole", level=Level.OK)
    if not values and _is_part(migration, _name(method)):
        return Outcome("a part of the model, which gathers in its own forward", level=Level.OK)
    if not values and _name(method).startswith(_SWITCHES):
        return Outcome("it changes how the model runs, and computes nothing", level=Level.OK)
    if goes_by_own_state(migration.program, called):
        return Outcome("it loads or reads the model's own state dict, which is gathered or distributed by itself", level=Level.OK)
    if rebuilds_parameters(migration.program, called):
        return Outcome("it gives modules other parameters: no gather makes that right (FS419)", level=Level.OK)
    if replaces_own_parts(migration.program, called):
        return Outcome(_OTHER_PARTS, level=Level.MANUAL, form=Form.NOTE, advice="Call it in front of the wrap, on a plain model.")
    edits = edits_parameters(migration.program, called)
    name, member = migration.helper(site, "method_on_full" if edits else "forward_method"), _name(method)

    def build(node: cst.CSTNode) -> cst.CSTNode:
        model = node.args[0].value if isinstance(node, cst.Call) else cst.ensure_type(node, cst.Attribute).value
        new = expression(name + '({model}, "' + member + '")', model=model)
        return new.with_changes(lpar=node.lpar, rpar=node.rpar)  # type: ignore[attr-defined]

    if site.call is not None and is_scripted(site.file, site.call):
        test = migration.torch(site, "torch.jit.is_scripting")
        return Outcome(_SCRIPTED, [replace(site.file, site.call, lambda call: _unless(test, call, build))])
    if edits:
        change = replace(site.file, method, build)
        return Outcome(f"{member} works on whole parameters and gradients, and its edits stay", [change])
    if _learns(site, migration, called):
        functions = [migration.program.function_node(v) for v in reached]
        if any(may_go_other_rounds(owner, function) for owner, function in functions):
            return Outcome(_OTHER_ROUNDS, [replace(site.file, method, build)], Level.MANUAL, advice=_AS_MANY)
        return Outcome(LEARNS_APART, [replace(site.file, method, build)], Level.REVIEW, advice=WHERE_SAME)
    return Outcome(f"{member} gathers parameters as forward does", [replace(site.file, method, build)])


def _may_be_anything(site: Site) -> bool:
    """Whether texts and dictionaries come to a place beside models: a configuration that is walked through."""
    found = site.file.values(site.receiver) if site.receiver is not None else []
    kinds = {type(v) for v in found if not (isinstance(v, Constant) and not isinstance(v.value, str))}
    return {Constant, Container} <= kinds


def _learns(site: Site, migration: Migration, called: Sequence[Value]) -> bool:
    """Whether a backward may go through what a method gives, which no wrapper of DDP saw: it reduced nothing for it."""
    if site.sharding is None or site.sharding.wrappers != {"ddp"}:
        return False
    calls = [call for call in _calls_of(site) if not isinstance(site.file.parents[call], ast.Expr)]
    if not calls:
        return False  # whatever it gives, nobody uses it
    known = [v.function if isinstance(v, Bound) else v for v in called]
    functions = [migration.program.function_node(v) for v in known if isinstance(v, FunctionValue)]
    method = site.call.func if site.call is not None else site.node
    if not functions and not _GIVES_LOSSES.search(_name(method)):  # type: ignore[arg-type]
        return False
    if functions and all(is_without_gradients(owner, next(ast.iter_child_nodes(node))) for owner, node in functions):
        return False
    return any(may_learn(site.file, call) for call in calls)


def _calls_of(site: Site) -> list[ast.Call]:
    """The call at a site, or those of the name that a method is given there: ``losses_of = model.losses``."""
    if site.call is not None:
        return [site.call]
    statement = site.file.statement(site.node)
    names = {t.id for t in statement.targets if isinstance(t, ast.Name)} if isinstance(statement, ast.Assign) else set()
    around = site.file.function(site.node) or site.file.tree
    return [n for n in ast.walk(around) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id in names]


def _unless(scripting: str, call: cst.CSTNode, build: Callable[[cst.CSTNode], cst.CSTNode]) -> cst.CSTNode:
    """Scripted models are not sharded, and TorchScript compiles nothing of the branch that it never takes."""
    assert isinstance(call, cst.Call)
    both = expression("{call} if " + scripting + "() else {new}", call=call, new=call.with_changes(func=build(call.func)))
    return both.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


_SCRIPTED = "parameters are gathered as in forward, but in TorchScript: what is compiled there calls nothing of Python"
_OTHER_PARTS = "it gives a sharded model other parameters or layers, which fully_shard does not know"
_OTHER_ROUNDS = "it calls the model's parts in a loop that a rank may leave before others, with gradients: shards hang then"
_AS_MANY = "Let all ranks go as many rounds as the one with most, or shard the model without units inside."
_GIVES_LOSSES = re.compile(r"forward|loss")
"""How methods of libraries are called through which models learn."""


def _is_part(migration: Migration, name: str) -> bool:
    """Whether classes of the repository set an attribute of a name, and none has a method of it."""
    if migration.program.flow.methods_by_name().get(name):
        return False
    return migration.program.mentions(rf"\bself\.{re.escape(name)}\s*(:[^=\n]+)?=[^=]")


_SAVES = "save_pretrained"
"""The method by which models of transformers, diffusers and peft save themselves: it reads the state, unless it is given."""


_NAMES = frozenset({"no_weight_decay", "no_weight_decay_keywords", "group_matcher"})
"""Methods by which models of timm, and others after them, say how optimizers are to treat which parameters."""
_OF_CONTAINERS = frozenset({*dir(dict), *dir(list), *dir(set)}) - {"update", "copy"}
"""What objects in one place with models may be asked, and no model has under these names to compute with."""
_OF_ENGINES = frozenset({"save_checkpoint", "load_checkpoint", "backward", "train_batch", "eval_batch"})
"""Methods of DeepSpeed's engine; a model's own one that saves or loads goes by its state dict."""
_SWITCHES = ("enable_", "disable_", "print_", "gradient_checkpointing_")
"""How methods of libraries are called that compute nothing with parameters; one that does would raise among DTensors."""


def _with_state(site: Site, migration: Migration, call: ast.Call) -> Outcome | None:
    if any(keyword.arg in ("state_dict", None) for keyword in call.keywords) or not isinstance(call.func, ast.Attribute):
        return None
    if migration.is_held(site.file, call):
        return Outcome("the model is whole on the ranks that come here", level=Level.OK)
    if migration.program.flow.methods_by_name().get(_SAVES):
        return Outcome("classes of the program save themselves by this name, and take no state for it", level=Level.OK)
    state = migration.helper(site, "state_of")

    def build(node: cst.CSTNode) -> cst.CSTNode:
        new = cst.ensure_type(node, cst.Call)
        model = cst.ensure_type(new.func, cst.Attribute).value
        return with_argument(new, argument(expression(state + "({model})", model=model), "state_dict"))

    return Outcome(f"{_SAVES} gets the gathered state: by itself it would save shards", [replace(site.file, call, build)])


def _name(method: ast.expr) -> str:
    """The name of a method: of ``model.generate``, or of ``getattr(model, "generate")``."""
    if isinstance(method, ast.Attribute):
        return method.attr
    assert isinstance(method, ast.Call) and isinstance(method.args[1], ast.Constant)
    return str(method.args[1].value)


RULE = Rule(
    id="FS308",
    title="methods of models",
    symbols=(MODULE_METHODS,),
    roles=("method",),
    why="Only forward gathers parameters: another method meets shards, and raises or works by luck after an evaluation.",
    fallback=registered,
    examples=(
        Example(
            before=(
                "import torch\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "class Net(torch.nn.Module):\n"
                "    def generate(self, x):\n"
                "        return x @ self.weight\n"
                "\n"
                "\n"
                "def f(options, x):\n"
                "    model = DDP(Net(), **options)\n"
                "    return model.module.generate(x)\n"
            ),
            after=(
                "import torch\n"
                "\n"
                "from fsdp2_helpers import forward_method, shard_like_ddp\n"
                "\n"
                "\n"
                "class Net(torch.nn.Module):\n"
                "    def generate(self, x):\n"
                "        return x @ self.weight\n"
                "\n"
                "\n"
                "def f(options, x):\n"
                "    model = shard_like_ddp(Net(), **options)\n"
                '    return forward_method(model, "generate")(x)\n'
            ),
            level=Level.SAFE,
        ),
        Example(
            before=(
                "import torch\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "class Net(torch.nn.Module):\n"
                "    def __init__(self, decoder):\n"
                "        super().__init__()\n"
                "        self.decoder = decoder\n"
                "\n"
                "    @torch.jit.export\n"
                "    def probabilities(self, x: torch.Tensor):\n"
                "        return self.decoder.probabilities(x)\n"
                "\n"
                "\n"
                "def f(options, x, decoder):\n"
                "    model = DDP(decoder, **options)\n"
                "    return Net(model.module).probabilities(x)\n"
            ),
            after=(
                "import torch\n"
                "\n"
                "from fsdp2_helpers import forward_method, shard_like_ddp\n"
                "\n"
                "\n"
                "class Net(torch.nn.Module):\n"
                "    def __init__(self, decoder):\n"
                "        super().__init__()\n"
                "        self.decoder = decoder\n"
                "\n"
                "    @torch.jit.export\n"
                "    def probabilities(self, x: torch.Tensor):\n"
                "        return (self.decoder.probabilities(x) if torch.jit.is_scripting() "
                'else forward_method(self.decoder, "probabilities")(x))\n'
                "\n"
                "\n"
                "def f(options, x, decoder):\n"
                "    model = shard_like_ddp(decoder, **options)\n"
                "    return Net(model).probabilities(x)\n"
            ),
            level=Level.SAFE,
            note="A scripted copy for export compiles the method.",
        ),
        Example(
            before=(
                "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
                "from transformers import AutoModel\n"
                "\n"
                "\n"
                "def f(options, path):\n"
                "    model = FSDP(AutoModel.from_pretrained('tiny'), **options)\n"
                "    model.module.save_pretrained(path)\n"
            ),
            after=(
                "from transformers import AutoModel\n"
                "\n"
                "from fsdp2_helpers import shard_like_fsdp1, state_of\n"
                "\n"
                "\n"
                "def f(options, path):\n"
                "    model = shard_like_fsdp1(AutoModel.from_pretrained('tiny'), **options)\n"
                "    model.save_pretrained(path, state_dict=state_of(model))\n"
            ),
            level=Level.SAFE,
        ),
    ),
    proof=("unwrap_helper",),
)
