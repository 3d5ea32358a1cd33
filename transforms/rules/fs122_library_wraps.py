"""FS122: models that a library wraps."""

from __future__ import annotations

from ..facts.symbols import LIBRARY_WRAPS, wraps_in_library
from ..findings import Form, Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site

_ADVICE = {
    "accelerate": "`fsdp_version: 2` in accelerate's configuration; `accelerate to-fsdp2` converts it",
    "transformers": "`fsdp_version: 2` in the `fsdp_config` of TrainingArguments, or in accelerate's configuration",
    "lightning": "strategy=ModelParallelStrategy(), and fully_shard in configure_model of the module",
    "pytorch_lightning": "strategy=ModelParallelStrategy(), and fully_shard in configure_model of the module",
}


def left_alone(site: Site, migration: Migration) -> Outcome | None:
    """The library's own way to FSDP2, where it has one."""
    if not wraps_in_library(site.symbol):
        return None
    advice = _ADVICE.get(site.symbol.partition(".")[0], "call fully_shard in its place, if the library lets you")
    message = f"{site.symbol} may put models into DDP or FSDP1 itself: those stay there, the library decides"
    return Outcome(message, level=Level.REVIEW, form=Form.NOTE, advice=advice)


RULE = Rule(
    id="FS122",
    title="models that libraries wrap",
    symbols=LIBRARY_WRAPS,
    roles=("call", "base"),
    why="What wraps in a library is not this repository's code: such models still answer as wrappers do, and train as before.",
    fallback=left_alone,
    examples=(
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel\n"
                "from accelerate import Accelerator\n"
                "\n"
                "\n"
                "def f(model, options):\n"
                "    model = Accelerator().prepare(model)\n"
                "    return isinstance(model, DistributedDataParallel)\n"
            ),
            after=(
                "from torch.nn.parallel import DistributedDataParallel\n"
                "from torch.distributed.fsdp import FSDPModule\n"
                "from accelerate import Accelerator\n"
                "\n"
                "\n"
                "def f(model, options):\n"
                "    model = Accelerator().prepare(model)\n"
                "    return isinstance(model, (DistributedDataParallel, FSDPModule))\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)  # fmt: skip
