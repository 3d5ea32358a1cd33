"""Classes in the place of DDP and FSDP1 where these were values: to be called, and to be asked for by isinstance()."""

from typing import Any

from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from .ddp import shard_like_ddp
from .shard import shard_like_fsdp1
from .wrapped import stands_for


class _Shards(type):
    """Of a class that makes no objects: calling it shards a module. Sharded modules count as its objects, and so do those of the
    old class, which a subclass or a library goes on making.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.shard(*args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]

    def __instancecheck__(cls, instance: Any) -> bool:
        kind, old = cls.kind, cls.old  # pyright: ignore[reportAttributeAccessIssue]
        return isinstance(instance, old) or (isinstance(instance, FSDPModule) and stands_for(instance) in (kind, None))


class ClassLikeDDP(metaclass=_Shards):
    """`DistributedDataParallel` as a value: a call is `shard_like_ddp`, and isinstance() tells what it sharded."""

    kind, old, shard = "ddp", DistributedDataParallel, staticmethod(shard_like_ddp)


class ClassLikeFSDP1(metaclass=_Shards):
    """`FullyShardedDataParallel` as a value: a call is `shard_like_fsdp1`, and isinstance() tells what it sharded."""

    kind, old, shard = "fsdp1", FullyShardedDataParallel, staticmethod(shard_like_fsdp1)
