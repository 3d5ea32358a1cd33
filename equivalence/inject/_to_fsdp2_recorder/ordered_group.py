"""A process group whose reductions give the same bits whatever wraps the model.

A ring adds in an order that depends on how gradients are cut into buckets, and DDP, FSDP1 and FSDP2 cut differently.
Here every reduction gathers all contributions, adds them in rank order in float64 and rounds once. Slow, and exact
enough that on a power-of-two number of ranks the three agree bit for bit. Data moves by gloo, through host memory.
"""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, ProcessGroupGloo
from torch._C._distributed_c10d import Work as _Work
from torch.futures import Future

from .collectives import traffic

_Kind: Any = dist.ReduceOp.RedOpType
# torch's stubs name other parameters than its C++ side passes.
_ProcessGroup: Any = dist.ProcessGroup
_Gloo: Any = ProcessGroupGloo
_Tensors = list[torch.Tensor]


class _Done(_Work):
    """A collective that has already happened."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._result = result
        tensors = result if isinstance(result, list) else [result]
        devices = {t.device for t in tensors if isinstance(t, torch.Tensor) and t.is_cuda}
        self._future: Future[Any] = Future(devices=sorted(devices, key=str))
        self._future.set_result(result)

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def get_future(self) -> Future[Any]:
        return self._future

    def result(self) -> Any:
        return self._result


def _never_destroy(group: Any) -> None:
    """gloo's threads need the interpreter's lock to drop the tensors of their last call. Where a wrapper holds a group until
    the interpreter ends, the main thread waits for them with that lock in its hands, for ever, when it destroys the group."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


class OrderedGroup(_ProcessGroup):
    """The methods are those that torch calls on a process group, under the names of torch 2.6 to 2.13."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, perturbation: int | None = None) -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size
        self._perturbation = perturbation
        self._reductions = 0
        self._gloo = _Gloo(store, rank, size, timeout)
        atexit.register(_never_destroy, self._gloo)
        # Functional collectives (DTensor's) look a backend up by device; they mostly gather, which has no order.
        for device in ("cpu", "cuda") if torch.version.cuda else ("cpu",):
            self._register_backend(torch.device(device), dist.ProcessGroup.BackendType.GLOO, self._gloo)

    # Reductions.

    def allreduce(self, tensors: _Tensors, opts: Any = None) -> _Done:
        with traffic.collective("all_reduce", tensors, self):
            for tensor in tensors:
                tensor.copy_(self._reduce(self._gather(tensor), opts))
        return _Done(tensors)

    def allreduce_coalesced(self, tensors: _Tensors, opts: Any = None) -> _Done:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: _Tensors, opts: Any) -> _Done:
        with traffic.collective("reduce", tensors, self):
            for tensor in tensors:
                total = self._reduce(self._gather(tensor), opts)
                if opts.rootRank == self._rank:
                    tensor.copy_(total)
        return _Done(tensors)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> _Done:
        with traffic.collective("reduce_scatter", [input], self):
            mine = [part.view(self._size, -1)[self._rank] for part in self._gather(input.flatten())]
            output.copy_(self._reduce(mine, opts).view_as(output))
        return _Done([output])

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter(self, outputs: _Tensors, inputs: list[_Tensors], opts: Any = None) -> _Done:
        for output, parts in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, torch.cat([part.flatten() for part in parts]), opts)
        return _Done(outputs)

    def reduce_scatter_single_coalesced(self, outputs: _Tensors, inputs: _Tensors, opts: Any = None) -> _Done:
        for output, input in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, input, opts)
        return _Done(outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # Movements of data.

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> _Done:
        with traffic.collective("all_gather", [output], self):
            output.copy_(torch.cat([part.flatten() for part in self._gather(input)]).view_as(output))
        return _Done([output])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: _Tensors, inputs: _Tensors, opts: Any = None) -> _Done:
        for output, input in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, input, opts)
        return _Done(outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather(self, outputs: list[_Tensors], inputs: _Tensors, opts: Any = None) -> _Done:
        with traffic.collective("all_gather", outputs[0], self):
            for parts, input in zip(outputs, inputs, strict=True):
                for part, gathered in zip(parts, self._gather(input), strict=True):
                    part.copy_(gathered.view_as(part))
        return _Done(outputs)

    def broadcast(self, tensors: _Tensors, opts: Any) -> _Done:
        return self._through_host("broadcast", tensors, lambda host: self._gloo.broadcast(host, opts))

    def send(self, tensors: _Tensors, rank: int, tag: int = 0) -> Any:
        with traffic.collective("send", tensors, self):
            return self._gloo.send([tensor.cpu() for tensor in tensors], rank, tag)

    def recv(self, tensors: _Tensors, rank: int, tag: int = 0) -> Any:
        if any(tensor.is_cuda for tensor in tensors):
            return self._through_host("recv", tensors, lambda host: self._gloo.recv(host, rank, tag))
        with traffic.collective("recv", tensors, self):
            return self._gloo.recv(tensors, rank, tag)

    def gather(self, outputs: list[_Tensors], inputs: _Tensors, opts: Any) -> _Done:
        with traffic.collective("gather", inputs, self):
            gathered = self._gather(inputs[0])
            if opts.rootRank == self._rank:
                for part, value in zip(outputs[0], gathered, strict=True):
                    part.copy_(value.view_as(part))
        return _Done(outputs)

    def scatter(self, outputs: _Tensors, inputs: list[_Tensors], opts: Any) -> _Done:
        with traffic.collective("scatter", outputs, self):
            host = [output.cpu() for output in outputs]
            self._gloo.scatter(host, [[part.cpu() for part in parts] for parts in inputs], opts).wait()
            _copy(outputs, host)
        return _Done(outputs)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_sizes: list[int],
        input_sizes: list[int],
        opts: Any = None,
    ) -> _Done:
        def exchange(host: _Tensors) -> Any:
            return self._gloo.alltoall_base(host[0], input.cpu().contiguous(), output_sizes, input_sizes)

        return self._through_host("all_to_all", [output], exchange)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: _Tensors, inputs: _Tensors, opts: Any = None) -> _Done:
        output = torch.cat([part.flatten() for part in outputs])
        sizes = [part.numel() for part in outputs], [part.numel() for part in inputs]
        self.all_to_all_single(output, torch.cat([part.flatten() for part in inputs]), *sizes)
        for part, received in zip(outputs, output.split(sizes[0]), strict=True):
            part.copy_(received.view_as(part))
        return _Done(outputs)

    def barrier(self, opts: Any = None) -> _Done:
        with traffic.collective("barrier", [], self):
            self._gather(torch.zeros(1, device="cpu"))
        return _Done([])

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        self.barrier()

    # What torch asks a process group about itself.

    @property
    def pg_name(self) -> str:
        return dist.distributed_c10d._world.pg_names[self]

    @property
    def group_name(self) -> str:
        return self.pg_name

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def getBackendName(self) -> str:
        return "gloo"

    def shutdown(self) -> None:
        """Nothing runs in the background."""

    abort = shutdown

    # The work itself.

    def _gather(self, tensor: torch.Tensor) -> _Tensors:
        tensor = tensor.detach().cpu().contiguous()
        parts = [torch.empty_like(tensor) for _ in range(self._size)]
        self._gloo.allgather([parts], [tensor], AllgatherOptions()).wait()
        return parts

    def _reduce(self, parts: Sequence[torch.Tensor], opts: Any) -> torch.Tensor:
        op: Any = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
        kind = getattr(op, "op", op)
        dtype = parts[0].dtype
        if kind not in (_Kind.SUM, _Kind.AVG, _Kind.PREMUL_SUM):
            return _combine(kind, parts)
        total = parts[0].to(_accumulator(dtype), copy=True)
        for part in parts[1:]:
            total += part
        if kind == _Kind.PREMUL_SUM:
            total *= op.__getstate__()[1]
        if kind == _Kind.AVG:
            total = total / self._size
        if self._perturbation is not None and dtype.is_floating_point:
            self._perturb(total, torch.finfo(dtype).eps)
        return total.to(dtype)

    def _perturb(self, total: torch.Tensor, eps: float) -> None:
        # The seed is the same on all ranks, so replicas of a result stay equal.
        self._reductions += 1
        seed = (self._perturbation or 0) * 1_000_003 + self._reductions
        random = torch.Generator(device="cpu").manual_seed(seed)
        total *= 1 + eps * (torch.randint(0, 3, total.shape, generator=random, device="cpu") - 1)

    def _through_host(self, op: str, tensors: _Tensors, action: Callable[[_Tensors], Any]) -> _Done:
        with traffic.collective(op, tensors, self):
            host = [tensor.detach().cpu() for tensor in tensors]
            action(host).wait()
            _copy(tensors, host)
        return _Done(tensors)


def _copy(tensors: _Tensors, host: _Tensors) -> None:
    for tensor, value in zip(tensors, host, strict=True):
        if tensor.data_ptr() != value.data_ptr():
            tensor.detach().copy_(value)


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


def _combine(kind: Any, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    operations: dict[Any, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        _Kind.MAX: torch.maximum,
        _Kind.MIN: torch.minimum,
        _Kind.PRODUCT: torch.mul,
        _Kind.BAND: torch.bitwise_and,
        _Kind.BOR: torch.bitwise_or,
        _Kind.BXOR: torch.bitwise_xor,
    }
    result = parts[0]
    for part in parts[1:]:
        result = operations[kind](result, part)
    return result
