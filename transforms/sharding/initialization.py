"""Arguments about the state of the model before training: devices, meta tensors, equal weights, what is left out."""

from __future__ import annotations

import ast
from dataclasses import replace

from ..analysis.values import Derived, Instance, Opaque
from ..findings import Level
from ..leaving.harmless import is_harmless
from ..rule import Outcome
from ..view import FileView
from .comments import comments_of
from .constructor import Argument, Constructor, translates
from .plan import MODEL, UNIT, Code, code
from .prepare import broadcast, is_on_device, move_to, under


@translates("device_id")
def device_id(constructor: Constructor, argument: Argument) -> Outcome:
    """fully_shard moves what it shards to the current device of the mesh."""
    if _is_cpu(constructor, argument) and "mesh" not in constructor.plan.arguments:
        init = constructor.plan.name("torch.distributed.device_mesh.init_device_mesh")
        size = constructor.plan.name("torch.distributed.get_world_size")
        constructor.plan.arguments["mesh"] = code(f'{init}("cpu", ({size}(),))')
        constructor.plan.named.add("mesh")
        return Outcome(
            Level.SAFE, "the mesh names the CPU: the default one takes an accelerator where there is one"
        )
    if argument.is_none or _sets_device(constructor) or not _is_index(argument):
        return Outcome(Level.SAFE, "device_id goes: fully_shard moves the model to the device of its mesh")
    constructor.sets_device = True
    return Outcome(
        Level.REVIEW,
        "fully_shard takes the current device, and nothing in this repository sets it: torch.cuda.set_device "
        "comes before",
    )


def _is_cpu(constructor: Constructor, argument: Argument) -> bool:
    """Whether the device is the CPU wherever the program runs."""
    calls = [
        constructor.program.call_node(v.site)[1]
        for v in argument.values
        if isinstance(v, Opaque) and v.name == "torch.device"
    ]
    names = [call.args[0].value for call in calls if call.args and isinstance(call.args[0], ast.Constant)]
    return (
        bool(names)
        and len(names) == len(argument.values)
        and all(str(name).startswith("cpu") for name in names)
    )


def _sets_device(constructor: Constructor) -> bool:
    return any(
        call.method in ("set_device", "set_device_index")
        for file in constructor.program.files
        for call in file.calls
    )


def _is_index(argument: Argument) -> bool:
    """Whether a device_id names another device than the current one may be."""
    text = argument.view.text(argument.node)
    current = "current_device" in text or "cpu" in text
    from_current = any(
        isinstance(v, Opaque) and (v.name.endswith("current_device") or v.name == "torch.device")
        for v in argument.values
    )
    return not current and not from_current


@translates("sync_module_states")
def sync_module_states(constructor: Constructor, argument: Argument) -> Outcome:
    """The broadcast is written out in ``prepare``."""
    constant = argument.constant()
    if isinstance(argument.node, ast.Constant) and not constant:
        return Outcome(Level.SAFE, "nothing is broadcast, as before")
    message = "parameters and buffers of rank 0 are broadcast before sharding: fully_shard leaves every rank its own"
    differences: list[str] = []
    group = constructor.arguments.get("process_group")
    if group is not None and not group.is_none and not isinstance(group.node, ast.Tuple):
        differences.append("all ranks get those of rank 0, FSDP1 kept to its process group")
    if needs_moving(constructor):
        differences.append("the whole model is on the device for a moment, where FSDP1 went unit by unit")
        if any(name in constructor.arguments for name in ("ignored_modules", "ignored_states", "ignored_parameters")):
            differences.append("what is ignored goes to the device with it, where FSDP1 left it")
    return Outcome(Level.REVIEW if differences else Level.SAFE, "; ".join([message, *differences]))


@translates("param_init_fn")
def param_init_fn(constructor: Constructor, argument: Argument) -> Outcome:
    """The function is called on modules with meta tensors before sharding, in ``prepare``."""
    if argument.is_none:
        return Outcome(Level.SAFE, "no function for meta tensors")
    return Outcome(
        Level.REVIEW,
        "meta modules are materialised before sharding, each rank the whole model (a broadcast of sync_module_states needs "
        "that); weights that modules share come apart there, so tie them again before fully_shard and any broadcast "
        "(model.tie_weights()), or ranks that had none on meta count fewer",
        "For a model that does not fit on one device: shard on meta, model.to_empty(device=…), then "
        "set_model_state_dict with broadcast_from_rank0=True, and recompute non-persistent buffers.",
    )


@translates("ignored_modules")
def ignored_modules(constructor: Constructor, argument: Argument) -> Outcome:
    """Their parameters go to ignored_params of every call, and none of them is a unit."""
    if argument.is_none:
        return Outcome(Level.SAFE, "nothing is ignored")
    one = constructor.view.free_name(constructor.call, "ignored")
    line = code("parameter for ", one, " in ", _or_nothing(argument), " for parameter in ", one, ".parameters()")
    return _ignore(constructor, argument, code("{\n    ", line, "\n}"))


@translates("ignored_states", "ignored_parameters")
def ignored_states(constructor: Constructor, argument: Argument) -> Outcome:
    """Parameters, or modules with all of theirs."""
    if argument.is_none:
        return Outcome(Level.SAFE, "nothing is ignored")
    values = constructor.program.elements(argument.values)
    if argument.name == "ignored_parameters" or any(
        isinstance(v, Derived) and v.kind == "parameters" for v in values
    ):
        return _ignore(constructor, argument, code("set(", _or_nothing(argument), ")"))
    if any(isinstance(v, Instance) for v in values):
        return ignored_modules(constructor, argument)
    torch = constructor.plan.name("torch.nn.Module")
    return _ignore(
        constructor,
        argument,
        code(
            "{\n    parameter\n    for state in ", _or_nothing(argument),
            f"\n    for parameter in (state.parameters() if isinstance(state, {torch}) else [state])\n}}",
        ),
    )  # fmt: skip


def _or_nothing(argument: Argument) -> Code:
    return code(argument.keep(), " or ()") if argument.may_be_none() else argument.keep()


def _ignore(constructor: Constructor, argument: Argument, parameters: Code) -> Outcome:
    is_known = constructor.migration.torch_has(2, 7)
    if not is_known and not argument.may_be_none():
        return Outcome(
            Level.MANUAL,
            f"{argument.name} needs ignored_params, which fully_shard has from torch 2.7",
            "Run with --target-torch 2.7 or later, or shard these parameters as well.",
            holds=True,
        )
    plan = constructor.plan
    local = constructor.view.free_name(constructor.call, "ignored_params")
    constructor.ignored = (local, code(local, " = ", parameters))
    if is_known:
        plan.arguments["ignored_params"] = (local,)
    else:
        given = constructor.view.free_name(constructor.call, "ignoring")
        plan.before.append(code(f'{given} = {{"ignored_params": {local}}} if {local} else {{}}'))
        plan.extras.append((f"**{given}",))
    units = plan.units
    if units is not None:
        skip = code("not ", local, ".issuperset(", UNIT, ".parameters())")
        if units.asks_all:
            # modules without parameters are asked too
            asked = code(local, ".isdisjoint(", UNIT, ".parameters())\n    or ", skip)
            plan.units = replace(units, ahead=asked)
        elif units.answers and units.condition is not None:
            plan.units = replace(units, ahead=skip)  # the answer itself has to come out
        else:
            plan.units = replace(units, condition=skip if units.condition is None else code(units.condition, " and ", skip))
    message = (
        f"{argument.name} becomes ignored_params; plain parameters beside sharded ones make clip_grad_norm_ "
        "over all of "
        "them raise, and foreach optimizers need a parameter group for each kind"
    )
    if not is_known:
        message += "; fully_shard has it from torch 2.7, and before raises where anything is ignored"
    return Outcome(Level.REVIEW, message)


def prepare(constructor: Constructor) -> None:
    """What has to happen to the model before it is sharded, in FSDP1's order: materialise, move, broadcast."""
    plan, arguments = constructor.plan, constructor.arguments
    comments = comments_of(constructor.view, constructor.call)
    found: list[Code] = []
    device = arguments.get("device_id")
    if device is not None and constructor.sets_device:
        found.append(code(plan.name("torch.cuda.set_device"), "(", device.keep(), ")"))
    init = arguments.get("param_init_fn")
    if init is not None and not init.is_none:
        found.extend(_commented(comments.pop("param_init_fn", []), _materialise(constructor, init)))
    ignored = ""
    if constructor.ignored is not None:
        ignored, definition = constructor.ignored
        found.append(definition)
    sync = arguments.get("sync_module_states")
    if sync is not None and not (isinstance(sync.node, ast.Constant) and not sync.node.value):
        statements = [broadcast(plan, skips_shards=constructor.is_shared, ignored=ignored)]
        if needs_moving(constructor):
            assert device is not None
            statements.insert(0, move_to(device.keep()))
        if not isinstance(sync.node, ast.Constant):
            statements = [under(sync.keep(), code(statements[0], *(code("\n", s) for s in statements[1:])))]
        found.extend(_commented(comments.pop("sync_module_states", []), statements))
    plan.before[:0] = found
    plan.before.extend((text,) for keyword in constructor.call.keywords for text in comments.get(keyword.arg or "", ()))


def _commented(comments: list[str], statements: list[Code]) -> list[Code]:
    """Statements with the comments of what they come from above them."""
    return [*((text,) for text in comments), *statements]


def needs_moving(constructor: Constructor) -> bool:
    """Whether the model may still be on the CPU where it is wrapped."""
    device, model = constructor.arguments.get("device_id"), constructor.plan.model
    if device is None or device.is_none:
        return False
    return model is None or not is_on_device(constructor.view, constructor.call, model)


def _materialise(constructor: Constructor, argument: Argument) -> list[Code]:
    """FSDP1 calls the function on every module that has a tensor of its own on meta."""
    view, node = argument.view, argument.node
    condition: Code | None = None
    statements: list[Code] = []
    if isinstance(node, ast.IfExp) and isinstance(node.orelse, ast.Constant) and node.orelse.value is None:
        condition = (view.keep(node.test, view.indent(node)),)
        node = node.body
    elif not isinstance(node, ast.Lambda) and argument.may_be_none():
        condition = code(argument.keep(), " is not None")
    body: Code
    if isinstance(node, ast.Lambda) and _one_parameter(node) is not None:
        if condition is None and _asks_once(argument, node):
            assert isinstance(node.body, ast.IfExp)
            condition = _on_one_line(view, node.body.test, "")
            body = _on_one_line(view, node.body.body, _one_parameter(node) or "")
        else:
            body = _inlined(constructor, argument, node)
    else:
        body = code(view.keep(node, view.indent(node)), "(", UNIT, ")")
    loop = code(
        "for ", UNIT, " in ", MODEL, ".modules():\n",
        "    tensors = [*", UNIT, ".parameters(recurse=False), *", UNIT, ".buffers(recurse=False)]\n",
        "    if any(tensor.is_meta for tensor in tensors):\n        ", body,
    )  # fmt: skip
    statements.append(loop if condition is None else under(condition, loop))
    return statements


def _asks_once(argument: Argument, node: ast.Lambda) -> bool:
    """``lambda module: … if not is_rank_zero else None``: a condition that is the same for every module."""
    body = node.body
    if not isinstance(body, ast.IfExp) or not isinstance(body.orelse, ast.Constant):
        return False
    return _one_parameter(node) not in argument.view.names_in(body.test) and is_harmless(argument.view, body.test)


def _one_parameter(node: ast.Lambda) -> str | None:
    arguments = node.args
    plain = len(arguments.args) == 1 and not (arguments.kwonlyargs or arguments.vararg or arguments.kwarg)
    return arguments.args[0].arg if plain else None


def _inlined(constructor: Constructor, argument: Argument, node: ast.Lambda) -> Code:
    """The body of a lambda, over the loop's module."""
    view, parameter = argument.view, _one_parameter(node) or ""
    body = node.body
    if isinstance(body, ast.IfExp) and isinstance(body.orelse, ast.Constant):
        test = _on_one_line(view, body.test, parameter)
        return code("if ", test, ":\n            ", _on_one_line(view, body.body, parameter))
    return _on_one_line(view, body, parameter)


def _on_one_line(view: FileView, node: ast.expr, parameter: str) -> Code:
    """An expression without its line breaks, with the loop's module for a lambda's parameter."""
    start, end = view.source.span(node)
    names = sorted(
        view.source.span(n) for n in ast.walk(node) if isinstance(n, ast.Name) and n.id == parameter
    )
    pieces: list[str] = []
    for first, last in names:
        pieces.append(view.source.text[start:first])
        start = last
    joined = "\0".join([*pieces, view.source.text[start:end]])
    text = " ".join(line.strip() for line in joined.splitlines())
    texts = text.replace("( ", "(").replace(" )", ")").replace("[ ", "[").replace(" ]", "]").split("\0")
    return code(texts[0], *(code(UNIT, text) for text in texts[1:]))
