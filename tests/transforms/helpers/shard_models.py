"""Small models with what is hard to shard, and one training loop for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._dynamo.utils  # here, and not again in every forked rank that meets DDP or a hook
import torch.distributed as dist
import torch.nn.functional as F
from models import batch, clean, close, parameters_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

VOCABULARY, WIDTH = 13, 6


class Model(nn.Module):
    """Embedding, `body`, head; the loss comes from the forward."""

    def __init__(self, body: nn.Module, **embedding: Any) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, WIDTH, **embedding)
        self.body = body
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.body(self.emb(ids))).float(), targets)


class Residual(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 9), nn.Linear(9, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Stack(nn.Module):
    """Blocks in a ModuleList; `step` says how each is called."""

    def __init__(self, blocks: Any, step: Callable[[Any, torch.Tensor], torch.Tensor] | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.step = step or (lambda block, x: block(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = self.step(block, x)
        return x


class Scaled(nn.Module):
    """Scalars, one of them inside of a block."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.gain = Residual(), nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.gain


class Spectral(nn.Module):
    """A complex parameter and a frozen integer one."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.order = nn.Parameter(torch.tensor([5, 4, 3, 2, 1, 0]), requires_grad=False)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=WIDTH))[..., self.order]


class TwoTypes(nn.Module):
    """A bfloat16 part with a float32 norm, both trained."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(self.norm(x).bfloat16()).float()


class Convolutional(nn.Module):
    """Weights in channels_last, which are not contiguous, and BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        layers = (m for _ in range(2) for m in (nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU()))
        self.layers: Any = nn.Sequential(*layers)
        self.layers.to(memory_format=torch.channels_last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        image = x.unsqueeze(1).expand(-1, 3, -1).unsqueeze(-1).repeat(1, 1, 1, WIDTH).to(memory_format=torch.channels_last)
        return x + self.layers(image).mean((1, 3))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0]


class LowRank(nn.Module):
    """A frozen bfloat16 layer and what is added to it in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16).requires_grad_(False)
        self.a, self.b = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x.bfloat16()).float() + self.b(self.a(x))


class Averages(nn.Module):
    """A buffer that training moves and the forward reads, and one of integers."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: Any
        self.count: Any
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("count", torch.zeros((), dtype=torch.long), persistent=False)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.linear(x - self.mean)
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
            self.count += 1
        return out


def pairs() -> nn.Module:
    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.ModuleList([nn.LayerNorm(WIDTH), Residual()]) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for norm, block in self.layers:  # pyright: ignore[reportGeneralTypeIssues]
                x = block(norm(x))
            return x

    return Pairs()


def by_parts() -> nn.Module:
    """A block whose parts are called, never the block itself."""
    return Stack((Residual() for _ in range(2)), lambda block, x: x + block.down(F.relu(block.up(block.norm(x)))))


def looped() -> nn.Module:
    block = Residual()
    return Stack([block, block])


def low_rank() -> nn.Module:
    return Stack(LowRank() for _ in range(2))


def attention() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, 9, dropout=0.0), 2)


def reentrant(use_reentrant: bool) -> Callable[[], nn.Module]:
    def call(block: Any, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, use_reentrant=use_reentrant)  # pyright: ignore[reportReturnType]

    return lambda: Stack((Residual() for _ in range(3)), call)


class Segments(nn.Sequential):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return checkpoint_sequential(list(self), 2, input, use_reentrant=False)


def tied() -> Model:
    model = Model(Stack(Residual() for _ in range(2)))
    model.head.weight = model.emb.weight
    return model


def attributes() -> Model:
    model = Model(Residual())
    model.head.bias.no_decay = True  # pyright: ignore[reportAttributeAccessIssue]
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "tied": tied,
    "blocks in a Sequential": lambda: Model(nn.Sequential(*(Residual() for _ in range(3)))),
    "pairs in a ModuleList": lambda: Model(pairs()),
    "one block twice": lambda: Model(looped()),
    "blocks that are called by parts": lambda: Model(by_parts()),
    "scalars": lambda: Model(Stack(Scaled() for _ in range(2))),
    "complex and integer": lambda: Model(Spectral()),
    "two types": lambda: Model(Stack(TwoTypes() for _ in range(2))),
    "sparse gradients": lambda: Model(Residual(), sparse=True),
    "padding index": lambda: Model(Residual(), padding_idx=0),
    "channels_last and BatchNorm": lambda: Model(Convolutional()),
    "LSTM": lambda: Model(Recurrent()),
    "frozen bfloat16 and low rank": lambda: Model(low_rank()),
    "buffers": lambda: Model(Averages()),
    "attention": lambda: Model(attention()),
    "weight_norm": lambda: Model(parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))),
    "checkpoint": lambda: Model(reentrant(False)()),
    "reentrant checkpoint": lambda: Model(reentrant(True)()),
    "checkpoint_sequential": lambda: Model(Segments(*(Residual() for _ in range(4)))),
    "attributes of parameters": attributes,
}  # fmt: skip


def build(name: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return MODELS[name]()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """SGD with momentum; decay only where a parameter does not refuse it."""
    trained = [p for p in model.parameters() if p.requires_grad]
    plain = [p for p in trained if hasattr(p, "no_decay")]
    decayed = [p for p in trained if not hasattr(p, "no_decay")]
    if any(m.sparse for m in model.modules() if isinstance(m, nn.Embedding)):
        return torch.optim.SGD(trained, lr=0.3)
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.SGD([group for group in groups if group["params"]], lr=0.3, momentum=0.9)


def train(run: Any, optimizer: Any, steps: int = 4, evaluate: bool = True) -> dict[str, Any]:
    """Losses, whole parameters, buffers, and the names of parameters without a gradient."""
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = run(*batch(step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if evaluate:
            run.eval()
            with torch.no_grad():
                losses.append(run(*batch(50)).item())
            run.train()
    return result(run, losses)


def result(run: Any, losses: list[float]) -> dict[str, Any]:
    run = run.module if isinstance(run := getattr(run, "_orig_mod", run), DDP) else run
    parameters = parameters_of(run)
    return {
        "losses": losses,
        "parameters": parameters,
        "buffers": {clean(name): b.clone() for name, b in run.named_buffers()},
        "without gradient": sorted(clean(name) for name, p in run.named_parameters() if p.grad is None),
        "shapes": {clean(name): tuple(p.shape) for name, p in run.named_parameters()},
    }


def differences(results: Sequence[dict[str, Any]], tolerance: float = 0.0) -> list[str]:
    """What differs between two results by more than `tolerance`; by default, what is not bitwise equal."""
    one, other = results
    found = [] if close(one["losses"], other["losses"], tolerance) else [f"losses {one['losses']} {other['losses']}"]
    found += [key for key in ("without gradient", "shapes") if one[key] != other[key]]
    for kind in ("parameters", "buffers"):
        if one[kind].keys() != other[kind].keys():
            return [*found, f"names of {kind}: {sorted(one[kind].keys() ^ other[kind].keys())}"]
        for name, tensor in one[kind].items():
            if not close(tensor, other[kind][name], tolerance):
                found.append(f"{name}: {(tensor - other[kind][name]).abs().max()}")
    return found


def rank() -> int:
    return dist.get_rank()
