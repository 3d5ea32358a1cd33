"""Follows a training process from step to step and writes its record.

A step ends with `optimizer.step()`; everything since the previous one belongs to it. What is observed elsewhere
(losses, clipping, the scaler, checkpoints) comes in through the methods of Recorder.
"""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import multiprocessing.util
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from . import checkpoints, clipping, evaluations, joined, losses, scalers, tripwires
from .collectives import traffic
from .executed_lines import ExecutedLines
from .imported_modules import ImportedModules
from .journal import Journal, uncaught_error
from .memory import SavedForBackward, peaks
from .optimizer_steps import OptimizerSteps
from .optimizers import OptimizerRecord
from .process_groups import ProcessGroups
from .settings import Settings


def install(
    settings: Settings, groups: ProcessGroups, applied: dict[str, str], lines: ExecutedLines | None
) -> Recorder:
    """Observe torch; nothing is written before the process starts to train."""
    recorder = Recorder(settings, groups, applied, lines)
    groups.on_init.append(recorder.begin)
    traffic.on_change = recorder.journal.waiting
    recorder.optimizers.watch()
    losses.install(recorder)
    scalers.install(recorder)
    clipping.install(recorder)
    checkpoints.install(recorder)
    evaluations.install(recorder)
    joined.install(recorder)
    if settings.tripwires:
        recorder.watch_tripwires()
    atexit.register(recorder.end)
    return recorder


def guarded(method: Callable[..., None]) -> Callable[..., None]:
    """What the recorder cannot do becomes a warning in the record, never an error in the training script."""

    @functools.wraps(method)
    def call(self: Recorder, *args: Any, **kwargs: Any) -> None:
        self.call_started = time.perf_counter()
        try:
            with torch.no_grad(), traffic.silent():
                method(self, *args, **kwargs)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{method.__name__}: {type(error).__name__}: {error}"
            self.journal.warn(f"{text} ({os.path.basename(where.filename)}:{where.lineno})")
        self.recording_seconds += time.perf_counter() - self.call_started

    return call


class Recorder:
    """The state of one process's record."""

    def __init__(
        self, settings: Settings, groups: ProcessGroups, applied: dict[str, str], lines: ExecutedLines | None
    ) -> None:
        self.settings = settings
        self.journal = Journal(settings.record or "", self._describe)
        self.step = 0
        self.micro = 0
        self.backwards = 0
        self.clips = 0
        self.scaled = False
        self.recording_seconds = 0.0
        self.call_started = 0.0
        self._groups = groups
        self._applied = applied
        self._modules = ImportedModules()
        self._lines = lines
        self._losses: list[dict[str, Any]] = []
        self.optimizers = OptimizerSteps(self._before_step, self._after_step, settings.root)
        self.after_step: list[Callable[[], None]] = []
        self.at_end: list[Callable[[], None]] = []
        self._tripwires: tripwires.Tripwires | None = None
        self._records: list[OptimizerRecord] = []
        self._step_started = time.perf_counter()
        self._recorded_before = 0.0
        self._saved = SavedForBackward()
        self._stepped: OptimizerRecord | None = None
        self._passes = self._joined = 0
        self._ended = False

    def _describe(self) -> dict[str, Any]:
        settings = self.settings
        return {
            "rank": self.rank,
            "world": dist.get_world_size() if _initialized() else int(os.environ.get("WORLD_SIZE", 1)),
            "local_rank": int(os.environ.get("LOCAL_RANK", self.rank)),
            "argv": sys.argv,
            "cwd": os.getcwd(),
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "backend": self._groups.asked,
            "mode": settings.mode,
            "level": str(settings.level),
            "emulated": bool(settings.emulate_cuda),
            "shared": bool(settings.share_cuda),
            "perturb": settings.perturb,
            "root": settings.root,
            "settings": self._applied,
        }

    @property
    def rank(self) -> int:
        return dist.get_rank() if _initialized() else int(os.environ.get("RANK", 0))

    def begin(self) -> None:
        """Open the record: the process joins others, or trains."""
        if not self.journal.started:
            self._register_end()
            self.journal.start()

    # Losses and events from elsewhere.

    def loss(self, value: torch.Tensor, scaled: bool, index: int) -> None:
        """A backward pass is about to start from this tensor; it is read later, so that nothing waits for a GPU."""
        self._losses.append({"step": self.step, "micro": self.micro, "index": index, "scaled": scaled, "tensor": value})

    def before_backward(self) -> None:
        """The outermost backward pass starts; `loss` follows for each of its tensors."""
        self.begin()
        self._saved.before_backward()

    def after_backward(self) -> None:
        """It has ended."""
        self._saved.after_backward()
        self.micro += 1
        self.backwards += 1

    def watch_tripwires(self) -> None:
        """Notice what goes wrong on sharded models without an error."""
        self._tripwires = tripwires.install(self)

    def event(self, name: str, **fields: Any) -> None:
        self.journal.write(name, step=self.step, **fields)

    @guarded
    def before_clip(self, parameters: list[torch.Tensor]) -> None:
        """Gradients are about to be clipped: now or never."""
        clipped = {id(parameter) for parameter in parameters}
        for owner in self.optimizers.owners_of(clipped):
            self._record_of(owner).gradients(self.step)

    def clip(
        self, again: bool, norm: float | None, tensors: int, parameters: list[torch.Tensor], **fields: Any
    ) -> None:
        """A clip call has returned. `again`: it is a part of the call before it."""
        clipped = {id(parameter) for parameter in parameters}
        owners = self.optimizers.owners_of(clipped)
        held = [id(p) for group in owners[-1].param_groups for p in group["params"]] if owners else []
        covered = sum(key in clipped for key in held)
        self.clips -= again and self.clips > 0
        self.event("clip", call=self.clips, norm=norm, tensors=tensors, covered=covered, total=len(held), **fields)
        self.clips += 1

    @guarded
    def evaluation(self, call: int, fields: dict[str, Any], outputs: Callable[[], list[dict[str, Any]]]) -> None:
        """A model has answered in eval mode."""
        self.event("evaluation", call=call, **fields, outputs=outputs())

    @guarded
    def before_checkpoint(self) -> None:
        """Make sure that the record names the parameters of every optimizer that a checkpoint may hold."""
        inner = {id(optimizer) for record in self._records for optimizer in record.inner}
        for optimizer in self.optimizers.alive():
            # One that another one steps (ZeroRedundancyOptimizer) is part of it.
            if optimizer.state and id(optimizer) not in inner:
                self._record_of(optimizer).describe(self.step)

    @guarded
    def before_failure(self) -> None:
        """Name what optimizers hold: one of parameters that the model no longer has is why some scripts fail."""
        for optimizer in self.optimizers.alive():
            self._record_of(optimizer).describe(self.step)

    def index_of(self, optimizer: Optimizer) -> int:
        """The number of the optimizer in the record."""
        return self._record_of(optimizer).index

    # Steps.

    @guarded
    def _before_step(self, optimizer: Optimizer) -> None:
        self.begin()
        record = self._record_of(optimizer)
        record.hyperparameters(self.step)
        record.describe(self.step)
        record.initial(self.step)
        record.gradients(self.step, clipped=self.clips > 0)

    @guarded
    def _after_step(self, optimizer: Optimizer, inner: list[Optimizer]) -> None:
        record = self._record_of(optimizer)
        record.inner = inner
        found_inf = getattr(optimizer, "found_inf", None)
        skipped = isinstance(found_inf, torch.Tensor) and bool(found_inf.item())
        try:
            record.results(self.step)
        finally:
            # Whatever could not be read, the step has been made.
            self._finish_step(record, skipped)
        self._look_at_hooks()

    def _look_at_hooks(self) -> None:
        for look in self.after_step:
            look()

    def trained(self) -> dict[int, torch.Tensor]:
        """The parameters of the models of all optimizers, by identity; empty where fully_shard shards none of them."""
        if not any(model.layout() == "fsdp2" for record in self._records for model in record.models):
            return {}
        return {key: value for record in self._records for key, value in record.trained().items()}

    @guarded
    def skipped_step(self, optimizer: Optimizer) -> None:
        """The gradient scaler has left out a step because of infinite gradients."""
        record = self._record_of(optimizer)
        record.describe(self.step)
        record.hyperparameters(self.step)
        self._finish_step(record, skipped=True)

    @guarded
    def joined_pass(self) -> None:
        """This rank has run out of data and took part in one forward and backward pass of the others (Join): a step,
        once there were as many passes as its own last step had."""
        self._joined += 1
        if self._stepped is not None and self._joined % max(1, self._passes) == 0:
            self._finish_step(self._stepped, skipped=False)

    def _finish_step(self, record: OptimizerRecord, skipped: bool) -> None:
        self._stepped, self._passes = record, self.micro or self._passes
        self._write_losses()
        now = time.perf_counter()
        recording = self.recording_seconds + (now - self.call_started) - self._recorded_before
        self.event(
            "step",
            optimizer=record.index,
            optimizer_step=record.steps,
            skipped=skipped,
            micros=self.micro,
            recorded=record.recorded,
            seconds=max(0.0, now - self._step_started - recording),
            recording_seconds=recording,
            collectives=traffic.take(),
            collectives_complete=self._groups.sees_everything or not record.uses_ddp,
            memory={**peaks(), "saved": self._saved.take()},
        )
        record.finish_step()
        if self.step == 0:
            self._write_modules()
            self._saved.start(record.models)
        self.journal.flush()
        self.step += 1
        self.micro = self.clips = 0
        self.scaled = False
        traffic.step = self.step
        self._step_started = time.perf_counter()
        self._recorded_before = self.recording_seconds + (self._step_started - self.call_started)

    def _record_of(self, optimizer: Optimizer) -> OptimizerRecord:
        for record in self._records:
            if record.optimizer() is optimizer:
                return record
        settings = self.settings
        record = OptimizerRecord(len(self._records), optimizer, self.journal, settings.level, self.rank, self._records)
        record.built_at = self.optimizers.built_at(optimizer)
        self._records.append(record)
        return record

    # Writing.

    def _write_losses(self) -> None:
        losses, self._losses = self._losses, []
        for fields in losses:
            tensor = fields.pop("tensor")
            if tensor.numel() == 1:
                self.journal.write("loss", value=float(tensor), **fields)
            else:
                self.journal.write("loss", value=None, shape=list(tensor.shape), **fields)

    def _write_modules(self) -> None:
        self.journal.write("modules", **self._modules.as_fields())
        if self._lines is not None:
            self.journal.write("lines", files=self._lines.as_fields())

    def _register_end(self) -> None:
        # A child of multiprocessing that was forked leaves without running atexit's functions.
        if multiprocessing.parent_process() is not None:
            multiprocessing.util.Finalize(None, self.end, exitpriority=1)

    def end(self) -> None:
        """Write what is only known at the end; nothing in a process that has not trained."""
        if self._ended or not self.journal.started:
            return
        self._ended = True
        if uncaught_error() is not None:
            self.before_failure()
        self._write_losses()
        self._write_modules()
        if self._tripwires is not None:
            self._tripwires.at_end()
        for write in self.at_end:
            write()
        self.journal.write(
            "end",
            steps=self.step,
            backwards=self.backwards,
            optimizers_created=self.optimizers.created,
            optimizers_stepped=sum(record.steps > 0 for record in self._records),
            recording_seconds=self.recording_seconds,
            error=uncaught_error(),
            time=time.time(),
        )
        self.journal.flush()


def _initialized() -> bool:
    return dist.is_available() and dist.is_initialized()
