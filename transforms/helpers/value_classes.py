"""Classes in the place of DDP and FSDP1 where these were values: to be called, and to be asked for by isinstance()."""

from typing import Any

from torch.distributed.fsdp import FSDPModule

from .ddp import shard_like_ddp
from .shard import shard_like_fsdp1
from .wrapped import stands_for


class _Shards(type):
    """Of a class that makes no objects: calling it shards a module, and sharded modules count as its objects."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.shard(*args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, FSDPModule) and stands_for(instance) in (cls.kind, None)  # pyright: ignore[reportAttributeAccessIssue]


class ClassLikeDDP(metaclass=_Shards):
    """`DistributedDataParallel` as a value: a call is `shard_like_ddp`, and isinstance() tells what it sharded."""

    kind, shard = "ddp", staticmethod(shard_like_ddp)


class ClassLikeFSDP1(metaclass=_Shards):
    """`FullyShardedDataParallel` as a value: a call is `shard_like_fsdp1`, and isinstance() tells what it sharded."""

    kind, shard = "fsdp1", staticmethod(shard_like_fsdp1)
