"""Names that annotations or tests say hold no model: nothing is rewritten for them."""

from __future__ import annotations

import textwrap

import pytest
from migrated_texts import HEAD, migrated
from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.text.source import Source

PROGRAM = """
import ast
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def features(self):
        return self.layer(torch.ones(2))

    def forward(self, x):
        return self.layer(x)


def look({parameter}):
    {body}


def main(parts):
    model = DDP(Net())
    for part in [model, *parts]:
        look(part)
    return model


main([])
"""


def _line(parameter: str, body: str) -> str:
    text = PROGRAM.format(parameter=parameter, body=body)
    source = Source.decode("train.py", text.encode())
    analysis = analyse([extract(source)], lambda _: source, Options(target_torch=(2, 13)), paths=["train.py"])
    assert not analysis.errors
    lines = analysis.texts["train.py"].splitlines()
    begin = lines.index(f"def look({parameter}):") + 1
    return textwrap.dedent("\n".join(lines[begin : lines.index("def main(parts):") - 2]))


@pytest.mark.parametrize(
    "parameter, body",
    [
        ("x: torch.Tensor", "return x.features()"),
        ("x: Optional[torch.Tensor]", "return x.features()"),
        ("x: 'torch.Tensor | None'", "return x.features()"),
        ("x: str", "return x.features()"),
        ("x: ast.ImportFrom", "return x.features()"),
        ("x", "return x.features() if isinstance(x, torch.Tensor) else 0"),
        ("x", "return torch.is_tensor(x) and x.features()"),
        ("x", "return x.detach()"),
    ],
)
def test_what_is_no_model_is_left(parameter: str, body: str) -> None:
    assert _line(parameter, body) == body


@pytest.mark.parametrize(
    "parameter",
    ["x", "x: torch.nn.Module", "x: Union[torch.Tensor, Net]", "x: 'what it is'"],
)
def test_what_may_be_one_is_not(parameter: str) -> None:
    assert _line(parameter, "return x.features()") == 'return forward_method(x, "features")()'


def test_a_name_of_a_model_may_be_given_for_the_model() -> None:
    assert "forward_method" in _line("x: str", "x = DDP(Net()) if x else None\n    return x.features()")


@pytest.mark.parametrize("annotation", ["FSDP", "fsdp.FullyShardedDataParallel", "'FSDP'", "Optional[FSDP]"])
def test_what_is_annotated_as_wrapped_is_one(annotation: str) -> None:
    program = HEAD + (
        "from typing import Optional\nfrom torch.distributed import fsdp\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
        f"def quiet(model: {annotation}):\n    return model.no_sync()\n\n\n"
        "def main():\n    model = FSDP(nn.Linear(2, 2))\n    with quiet(model):\n"
        "        model(torch.ones(1, 2)).sum().backward()\n\n\nmain()\n"
    )
    assert "return no_gradient_sync(model)" in migrated(train=program)["train"]


ASKS = HEAD + """
def names(model: nn.Module | DDP):
    if isinstance(model, DDP):
        {body}
    return [name for name, _ in model.named_modules()]


names(DDP(nn.Linear(2, 2)))
"""


@pytest.mark.parametrize(("body", "stays"), [("model = model.module", True), ("raise ValueError('before DDP')", False)])
def test_an_annotation_says_what_the_test_in_its_function_asks_for(body: str, stays: bool) -> None:
    new = migrated(train=ASKS.format(body=body))["train"]
    assert ("model: nn.Module | DDP" in new) == stays == ("isinstance(model, DDP)" in new)
