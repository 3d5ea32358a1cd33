"""Loaded by Python at start-up because its folder is on PYTHONPATH; prepares the process for a verified run.

Takes its folder off `sys.path` again and hands over to the `sitecustomize` that it hides, if there is one, so that
a training script finds the modules that it would have found without us.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

HERE = os.path.dirname(os.path.abspath(__file__))
LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "torchrun")


def _is_launcher() -> bool:
    """Whether this process is torchrun itself, whose workers are what we are after."""
    command = [os.path.basename(part) for part in sys.orig_argv[1:4]]
    return "RANK" not in os.environ and any(name in command for name in LAUNCHERS)


def _run_hidden_sitecustomize() -> None:
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if not _is_launcher():
    from _to_fsdp2_recorder import install

    install()

sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]
_run_hidden_sitecustomize()
