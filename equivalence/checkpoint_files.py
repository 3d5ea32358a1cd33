"""Reading checkpoints offline: torch.save files, safetensors files and Distributed Checkpoint (DCP)
directories.

All three come out as the nested dictionaries that were saved. Tensors lie on the CPU, mapped from the file
where the format allows it; a tensor of which the file holds only shards is a `Shards`.
"""

from __future__ import annotations

import io
import json
import math
import struct
import tarfile
import warnings
import zipfile
from collections import deque
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import torch

from .checkpoint_numpy import ArrayState
from .checkpoint_pickle import Opaque, pickle_module

Format = Literal["torch.save", "safetensors", "DCP"]

_SAFETENSORS_TYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32,
    "I64": torch.int64, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip

_LONGEST_HEADER = 100_000_000
"""Bytes; the limit of the format's own library."""
_DEEPEST = 100
_MOST = 10_000_000
"""How deep containers may lie in each other, and how many entries they may have: a few bytes can ask for any number."""


class UnreadableCheckpoint(Exception):
    """The file or directory is not a checkpoint of a known format, or is incomplete; the text says which."""


@dataclass
class Shards:
    """Parts of one tensor as a rank saved them.

    `kind` is DTensor or ShardedTensor, `shape` the shape of the whole tensor. Each part has its offsets in
    the whole; a DTensor does not carry them, so there they are None until the files of all ranks are joined
    along `dim`, the dimension it is sharded on (None where it is replicated, or sharded on several).
    """

    kind: Literal["DTensor", "ShardedTensor"]
    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: list[tuple[tuple[int, ...] | None, torch.Tensor]]
    dim: int | None = None

    def join(self) -> torch.Tensor | None:
        """The whole tensor, or None where the parts do not cover it.

        Parts without offsets are laid side by side in the given order (rank order); what is left over once
        the tensor is full is another replica.
        """
        whole = torch.empty(self.shape, dtype=self.dtype)
        filled, start = 0, 0
        seen: set[tuple[int, ...]] = set()
        for offsets, part in self.parts:
            if offsets is None:
                if self.dim is None and tuple(part.shape) == self.shape:
                    return part
                if self.dim is None or start >= self.shape[self.dim]:
                    break
                offsets = tuple(start if d == self.dim else 0 for d in range(len(self.shape)))
                start += part.shape[self.dim]
            if offsets in seen or part.numel() == 0:
                continue
            seen.add(offsets)
            if any(o + n > total for o, n, total in zip(offsets, part.shape, self.shape, strict=True)):
                return None
            whole[tuple(slice(o, o + n) for o, n in zip(offsets, part.shape, strict=True))] = part
            filled += part.numel()
        return whole if filled == math.prod(self.shape) else None


def read(path: Path) -> tuple[Format, Any]:
    """The format of a checkpoint and what it holds. Raises UnreadableCheckpoint."""
    if path.is_dir():
        if (path / ".metadata").is_file():
            return "DCP", read_dcp(path)
        raise UnreadableCheckpoint(f"{path.name} is a directory without DCP metadata (.metadata)")
    if not path.is_file():
        raise UnreadableCheckpoint(f"{path.name} does not exist any more")
    if path.suffix == ".safetensors":
        return "safetensors", read_safetensors(path)
    return "torch.save", read_torch_save(path)


def read_torch_save(source: Path | io.BytesIO) -> Any:
    """What `torch.save` wrote, tensors on the CPU and mapped where the file is in the zip format (torch 1.6
    on).

    `weights_only=False` is asked for, because files of training scripts hold more than tensors; it is
    harmless here, as the unpickler passed in constructs tensors and plain containers only (see
    checkpoint_pickle), and the files are those that the run itself has just written.
    """
    options: dict[str, Any] = {"map_location": "cpu", "weights_only": False, "pickle_module": pickle_module}
    try:
        mapped = isinstance(source, Path) and zipfile.is_zipfile(source)
        _require_data(source)
        return _plain(torch.load(source, mmap=mapped, **options))
    except Exception as error:  # torch raises whatever the broken file makes its parsers raise
        name = source.name if isinstance(source, Path) else "an entry"
        raise UnreadableCheckpoint(f"{name} cannot be read by torch.load: {described(error)}") from error


def _require_data(source: Path | io.BytesIO) -> None:
    """Raises ValueError for formats that torch.load runs or unpacks: TorchScript programs, tar and compressed archives."""
    if zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as archive:
            entries = archive.infolist()
        if any(PurePosixPath(entry.filename).name == "constants.pkl" for entry in entries):
            raise ValueError("it is a TorchScript program")
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("it is compressed, which torch.save does not do")
    elif isinstance(source, Path) and tarfile.is_tarfile(source):
        raise ValueError("it is a tar archive, as torch wrote them before 0.4")
    if isinstance(source, io.BytesIO):
        source.seek(0)


def described(error: Exception) -> str:
    """An error of a parser in one line that is no longer than people read."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 200 else text[:199] + "…"


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """A safetensors file: 8 bytes of header length (little endian), a JSON header, the data; mapped, not
    copied."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            text = file.read(min(length, _LONGEST_HEADER))
        if len(text) < length:
            raise ValueError("it ends within its header")
        header = json.loads(text)
        size = path.stat().st_size
        data = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)[8 + length :]
        header.pop("__metadata__", None)
        return {name: _safetensor(data, entry) for name, entry in header.items()}
    except Exception as error:  # whatever a broken header makes torch and the parser raise
        raise UnreadableCheckpoint(f"{path.name} is not a complete safetensors file: {described(error)}") from error


def _safetensor(data: torch.Tensor, entry: dict[str, Any]) -> torch.Tensor:
    dtype = _SAFETENSORS_TYPES[entry["dtype"]]
    start, end = entry["data_offsets"]
    if end > len(data):
        raise ValueError(f"the data ends at byte {len(data)} of {end}")
    piece = data[start:end]
    if piece.storage_offset() % dtype.itemsize:
        piece = piece.clone()
    return piece.view(dtype).view(entry["shape"])


def read_dcp(path: Path) -> Any:
    """A DCP directory, without a process group, nested again as it was before DCP flattened it."""
    # Imported here: it takes a second, and most comparisons have no DCP directory.
    from torch.distributed.checkpoint import state_dict_loader
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    from .checkpoint_metadata import read_metadata

    class Planner(DefaultLoadPlanner):
        def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
            self.state_dict[read_item.dest_index.fqn] = read_torch_save(value)

    class Reader(FileSystemReader):
        def read_metadata(self, *arguments: Any, **options: Any) -> Any:
            return metadata  # torch's own would run what the pickle says

    try:
        metadata = read_metadata(path)
        reader = Reader(path)
        flat: dict[str, Any] = {
            name: torch.empty(entry.size, dtype=entry.properties.dtype)
            if isinstance(entry, TensorStorageMetadata)
            else name
            for name, entry in metadata.state_dict_metadata.items()
        }
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*torch.distributed is disabled, unavailable or uninitialized.*")
            planner = Planner(flatten_state_dict=False, flatten_sharded_tensors=False)
            state_dict_loader.load(flat, storage_reader=reader, planner=planner)
        return _nested(flat, metadata.planner_data or {})
    except Exception as error:  # as above: whatever the parsers raise
        raise UnreadableCheckpoint(f"{path.name} cannot be read by DCP: {described(error)}") from error


def _nested(flat: dict[str, Any], paths: dict[str, tuple[str | int, ...]]) -> Any:
    """Undoes DCP's flattening with the paths it keeps in its metadata."""
    tree: dict[str | int, Any] = {}
    for name, value in flat.items():
        *parents, last = paths.get(name, (name,))
        node = tree
        for key in parents:
            node = node.setdefault(key, {})
        node[last] = value
    return _lists(tree)


def _lists(node: Any) -> Any:
    """Dictionaries with the keys 0…n-1 were lists (DCP's paths hold integers for list positions only)."""
    if not isinstance(node, dict):
        return node
    if node and all(isinstance(key, int) for key in node) and sorted(node) == list(range(len(node))):
        return [_lists(node[key]) for key in sorted(node)]
    return {key: _lists(value) for key, value in node.items()}


def _plain(value: Any) -> Any:
    """Stand-ins of sharded tensors become `Shards`, other stand-ins dictionaries of what they hold.

    Raises ValueError for containers that lie too deep in each other, or hold too much.
    """
    return _Plain().of(value, 0)


class _Plain:
    def __init__(self) -> None:
        self.entries = 0

    def of(self, value: Any, depth: int) -> Any:
        self.entries += 1
        if depth > _DEEPEST or self.entries > _MOST:
            raise ValueError("its containers are nested too deeply, or hold too much")
        if isinstance(value, ArrayState):
            return self.of(value.value, depth + 1)
        if isinstance(value, Opaque):
            return self._stand_in(value, depth + 1)
        if isinstance(value, dict):
            # Its own methods may have been given other meanings by the file.
            entries = dict.items(value)
            return {key if isinstance(key, (str, int)) else str(key): self.of(entry, depth + 1) for key, entry in entries}
        if isinstance(value, (list, tuple, deque)):
            return [self.of(entry, depth + 1) for entry in value]
        return value

    def _stand_in(self, value: Opaque, depth: int) -> Any:
        name = value.qualified_name.rsplit(".", 1)[-1]
        if name == "DTensor":
            return _dtensor(value)
        if name == "ShardedTensor":
            return _sharded_tensor(value)
        if name == "AsyncCollectiveTensor":
            return self.of(value.attributes()["elem"], depth)
        return {"class": value.qualified_name, **{k: self.of(v, depth) for k, v in value.attributes().items()}}


def _dtensor(stand_in: Opaque) -> Shards:
    held = stand_in.attributes()
    local, spec = _plain(held["_local_tensor"]), held["_spec"].attributes()
    dims = [p.attributes()["dim"] for p in spec["placements"] if p.qualified_name.endswith("Shard")]
    shape = tuple(spec["tensor_meta"].args[0])
    return Shards("DTensor", shape, local.dtype, [(None, local)], dims[0] if len(dims) == 1 else None)


def _sharded_tensor(stand_in: Opaque) -> Shards:
    local_shards, metadata = stand_in.state[0], stand_in.state[1].attributes()
    parts: list[tuple[tuple[int, ...] | None, torch.Tensor]] = []
    for shard in local_shards:
        held = shard.attributes()
        parts.append((tuple(held["metadata"].attributes()["shard_offsets"]), held["tensor"]))
    dtype = parts[0][1].dtype if parts else torch.float32
    return Shards("ShardedTensor", tuple(metadata["size"]), dtype, parts)
