"""Prepare torch, right after it has been imported, as the settings say."""

from __future__ import annotations

import os
import random
import sys

import torch

from . import determinism, emulated_cuda, exact_clip, fsdp1_on_cpu, process_groups, recorder, unit_inputs
from .executed_lines import ExecutedLines
from .observed_calls import ObservedCalls
from .settings import Settings


def prepare_torch(settings: Settings, lines: ExecutedLines | None, observed: ObservedCalls | None) -> None:
    """Seed, emulate, make exact and record, in this order: what comes later sees what came before."""
    has_cuda = torch.cuda.is_available()
    if settings.seed is not None:
        # One seed for all ranks would hide a lost broadcast of the initial weights in a script that does not seed itself.
        _seed(settings.seed + int(os.environ.get("RANK", "0")))
    applied = determinism.apply(settings)
    if settings.emulate_cuda or settings.share_cuda:
        emulated_cuda.install(settings)
    if not has_cuda or settings.emulate_cuda:
        fsdp1_on_cpu.install()
    if settings.exact:
        exact_clip.install()
    if settings.unit_inputs:
        unit_inputs.install(settings.unit_inputs)
    groups = process_groups.install(settings)
    if settings.record:
        record = recorder.install(settings, groups, applied, lines)
        if observed is not None:
            _observe(settings, record, observed)


def _observe(settings: Settings, record: recorder.Recorder, calls: ObservedCalls) -> None:
    from .observed_training import ObservedTraining

    training = ObservedTraining(settings.root)
    training.install()
    calls.numbers = training.number_of
    record.at_end.append(lambda: record.journal.write("observed", **calls.as_fields(), **training.as_fields()))


def _seed(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
