"""FS905: methods of a model's own class that compute with its parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ..contract import Breach, Contract
from ..findings import Level
from ..flow.values import ClassValue, FunctionValue, Instance, Opaque
from ..queries.file import File
from ..rule import ContractRule, Example

_REGISTER = "torch.distributed.fsdp.register_fsdp_forward_method"
_NOT_OURS = frozenset({"forward", "__call__", "__init__"})


def not_registered(contract: Contract) -> Iterator[Breach]:
    """Calls of methods that use layers which no call of a unit gathers."""
    registered = {_name_given(call) for _, call, _ in contract.calls(_REGISTER)}
    for file in contract.files:
        for call in file.nodes(ast.Call):
            function = call.func
            if not isinstance(function, ast.Attribute) or function.attr in _NOT_OURS or function.attr in registered:
                continue
            if None in registered or (isinstance(function.value, ast.Name) and function.value.id in ("self", "cls")):
                continue
            methods = contract.program.callees(file, call)
            if methods and all(_is_method(contract, m) and _computes(contract, m) for m in methods):
                calls = contract.sharded(file, function.value)
                if calls and not (_is_call_of_part(contract, methods, function.attr) and contract.gathers_for_parts(calls)):
                    message = f"{function.attr} computes with parameters that nothing gathers: only the call of the model does"
                    yield Breach(file, call, message, "torch.nn.Module.(method)", model=function.value)


def _name_given(call: ast.Call) -> str | None:
    """The method that a call registers; None where it is not written."""
    named = call.args[1] if len(call.args) > 1 else next((k.value for k in call.keywords if k.arg == "method_name"), None)
    return named.value if isinstance(named, ast.Constant) and isinstance(named.value, str) else None


def _is_call_of_part(contract: Contract, methods: Sequence[FunctionValue], name: str) -> bool:
    """Whether an attribute that is called is a part of the model, whose ``forward`` runs."""
    return all(getattr(contract.program.function_node(m)[1], "name", name) != name for m in methods)


def _is_method(contract: Contract, function: FunctionValue) -> bool:
    return contract.program.facts[function.file].functions[function.index].owner_class >= 0


def _computes(contract: Contract, function: FunctionValue) -> bool:
    """Whether a method calls a layer of its own object that is no unit, or computes with a parameter of it."""
    file, node = contract.program.function_node(function)
    if not isinstance(node, ast.FunctionDef) or not node.args.args:
        return False
    own = node.args.args[0].arg
    for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
        if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name) and call.func.value.id == own:
            if _is_plain_layer(contract, file, call):
                return True
    return False


def _is_plain_layer(contract: Contract, file: File, call: ast.Call) -> bool:
    values = file.called_values(call)
    if not values or not all(_is_layer(contract, v) for v in values):
        return False
    return not any(contract.models.of_values([value]) for value in values)


def _is_layer(contract: Contract, value: object) -> bool:
    if isinstance(value, Opaque):
        return value.name.startswith("torch.nn.") and value.name.rpartition(".")[2][:1].isupper() and "Module" not in value.name
    return isinstance(value, Instance) and isinstance(value.cls, ClassValue) and any(
        base.startswith("torch.nn.") for base in contract.program.flow.external_bases(value.cls)
    )


RULE = ContractRule(
    id="FS905",
    title="methods that are not registered",
    why="Only forward gathers parameters: another method meets shards, and raises or works by luck after an evaluation.",
    advice='register_fsdp_forward_method(model, "encode") behind fully_shard(model); all ranks have to call it then',
    breaches=not_registered,
    examples=(
        Example(
            before=(
                "import torch\n"
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "class Net(torch.nn.Module):\n"
                "    def __init__(self):\n"
                "        super().__init__()\n"
                "        self.embed = torch.nn.Linear(8, 8)\n\n"
                "    def encode(self, x):\n"
                "        return self.embed(x)\n\n\n"
                "def f(x):\n"
                "    model = Net()\n"
                "    fully_shard(model)\n"
                "    return model.encode(x)\n"
            ),
            after=(
                "import torch\n"
                "from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method\n\n\n"
                "class Net(torch.nn.Module):\n"
                "    def __init__(self):\n"
                "        super().__init__()\n"
                "        self.embed = torch.nn.Linear(8, 8)\n\n"
                "    def encode(self, x):\n"
                "        return self.embed(x)\n\n\n"
                "def f(x):\n"
                "    model = Net()\n"
                "    fully_shard(model)\n"
                '    register_fsdp_forward_method(model, "encode")\n'
                "    return model.encode(x)\n"
            ),
            level=Level.MANUAL,
        ),
    ),
)
