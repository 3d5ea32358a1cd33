"""FS307: what works below or beside the parameters: apex.amp and opacus."""

from __future__ import annotations

from ..findings import Form, Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site

_AMP = ("apex.amp.initialize", "apex.amp.frontend.initialize")
_OPACUS = (
    "opacus.PrivacyEngine", "opacus.privacy_engine.PrivacyEngine",
    "opacus.GradSampleModule", "opacus.grad_sample.GradSampleModule", "opacus.grad_sample.grad_sample_module.GradSampleModule",
)  # fmt: skip


def told(site: Site, migration: Migration) -> Outcome | None:
    """Nothing general is right: kernels take no DTensors, and what hangs on one parameter is sought on another."""
    if not migration.wrapper_kinds_near(site.file.path):
        return None
    if site.symbol in _AMP:
        message = "apex.amp unscales gradients by kernels that take no sharded ones, and ranks would not agree on infinities"
        advice = "torch.autocast and torch.amp.GradScaler do the same with shards"
    else:
        message = "opacus keeps each sample's gradient on the parameters that forwards use: optimizers of shards find none"
        advice = "opacus.utils.fsdp_utils.FSDP2Wrapper of recent versions shards such a model; or keep it in DDP"
    return Outcome(message, level=Level.MANUAL, form=Form.NOTE, advice=advice)


RULE = Rule(
    id="FS307",
    title="work below the parameters",
    symbols=(*_AMP, *_OPACUS),
    roles=("call",),
    why="apex.amp works below torch's dispatcher, where a DTensor has no memory; opacus hangs state on parameters, "
    "which are others in forwards than in optimizers.",
    fallback=told,
    examples=(
        Example(
            before=(
                "from apex import amp\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, optimizer, options):\n"
                '    net, optimizer = amp.initialize(net, optimizer, opt_level="O1")\n'
                "    return DDP(net, **options), optimizer\n"
            ),
            after=(
                "from apex import amp\n"
                "from fsdp2_helpers import shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, optimizer, options):\n"
                '    net, optimizer = amp.initialize(net, optimizer, opt_level="O1")\n'
                "    return shard_like_ddp(net, **options), optimizer\n"
            ),
            level=Level.MANUAL,
        ),
        Example(
            before=(
                "from opacus import PrivacyEngine\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, optimizer, loader):\n"
                "    return PrivacyEngine().make_private(module=DDP(net), optimizer=optimizer, data_loader=loader)\n"
            ),
            after=(
                "from opacus import PrivacyEngine\n"
                "from fsdp2_helpers import shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, optimizer, loader):\n"
                "    return PrivacyEngine().make_private(module=shard_like_ddp(net), optimizer=optimizer, data_loader=loader)\n"
            ),
            level=Level.MANUAL,
        ),
    ),
)
