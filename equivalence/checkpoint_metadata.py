"""The metadata of a Distributed Checkpoint (DCP) directory, which is a pickle, read as data."""

from __future__ import annotations

import pickle
from pathlib import Path, PurePosixPath
from typing import Any

from torch.distributed.checkpoint import filesystem, metadata

from .checkpoint_pickle import DataUnpickler

_LARGEST = 1 << 30
_METADATA = (
    "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties",
    "TensorStorageMetadata",
)  # fmt: skip
_CLASSES = {
    **{(metadata.__name__, name): found for name in _METADATA if (found := vars(metadata).get(name)) is not None},
    (filesystem.__name__, "_StorageInfo"): filesystem._StorageInfo,
}
_FORMATS = ("_MEM_FORMAT_ENCODING", "MEM_FORMAT_ENCODING")


class _Unpickler(DataUnpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _CLASSES:
            return _CLASSES[module, name]
        if module == metadata.__name__ and name in _FORMATS:
            return vars(metadata).get(name)
        return super().find_class(module, name)

    def takes_state(self, instance: Any) -> bool:
        return type(instance) in _CLASSES.values() or super().takes_state(instance)


def read_metadata(folder: Path) -> metadata.Metadata:
    """The metadata of a DCP directory. Raises ValueError for what is no metadata, or asks for more than is there."""
    file = folder / ".metadata"
    if file.stat().st_size > _LARGEST:
        raise ValueError(".metadata is larger than 1 GB")
    with file.open("rb") as opened:
        try:
            found = _Unpickler(opened).load()
        except pickle.UnpicklingError as error:
            raise ValueError(f".metadata holds what no checkpoint does: {error}") from error
    if not isinstance(found, metadata.Metadata):
        raise ValueError(f".metadata holds {type(found).__name__}")
    _check(found, folder)
    return found


def _check(found: metadata.Metadata, folder: Path) -> None:
    entries = found.state_dict_metadata
    if not isinstance(entries, dict) or not isinstance(found.storage_data, dict):
        raise ValueError(".metadata is incomplete")
    for place in found.storage_data.values():
        path = PurePosixPath(place.relative_path) if isinstance(place, filesystem._StorageInfo) else None
        if (
            path is None
            or path.is_absolute()
            or ".." in path.parts
            or not (folder / path).resolve().is_relative_to(folder.resolve())
        ):
            raise ValueError("an entry lies outside of the checkpoint")
        if any(not isinstance(number, int) or number < 0 for number in (place.offset, place.length)):
            raise ValueError("an entry has no place in its file")
        if getattr(place, "transform_descriptors", None):
            raise ValueError("an entry is compressed")
    there = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    asked = 0
    for entry in entries.values():
        if isinstance(entry, metadata.TensorStorageMetadata):
            if any(size < 0 for size in entry.size):
                raise ValueError("a tensor has a negative size")
            asked += entry.size.numel() * entry.properties.dtype.itemsize
        elif not isinstance(entry, metadata.BytesStorageMetadata):
            raise ValueError("an entry is neither a tensor nor bytes")
    # A chunk may be shared; a tensor of which nothing is there is none.
    if asked > 16 * there:
        raise ValueError(f"it asks for {asked:,} bytes, and its files hold {there:,}")
    for name, path in (found.planner_data or {}).items() if isinstance(found.planner_data, dict) else ():
        if not isinstance(name, str) or not isinstance(path, tuple) or len(path) > 100 or not path:
            raise ValueError("the path of an entry is none")
        if any(not isinstance(key, (str, int)) for key in path):
            raise ValueError("the path of an entry is none")
