# pyright: reportArgumentType=false
"""Checkpoints are data: whatever a file says, nothing of it runs, nothing changes here, and reading ends."""

import copy
import io
import os
import pickle
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from to_fsdp2.equivalence.checkpoint_files import UnreadableCheckpoint, read  # noqa: E402

MARK = "/tmp/to-fsdp2-hostile-mark"


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def value(thing: Any) -> bytes:
    return pickle.dumps(thing, protocol=2)[2:-1]


def call(module: str, attribute: str, *arguments: Any) -> bytes:
    return name(module, attribute) + value(tuple(arguments)) + b"R"


def state(target: bytes, given: Any) -> bytes:
    return target + value(given) + b"b"


def nested(depth: int, opening: bytes, closing: bytes) -> bytes:
    return opening * depth + closing * depth


RUNNING: dict[str, tuple[str, str, Any]] = {
    "system": ("os", "system", f"touch {MARK}"),
    "posix": ("posix", "system", f"touch {MARK}"),
    "popen": ("os", "popen", f"touch {MARK}"),
    "subprocess": ("subprocess", "Popen", ["touch", MARK]),
    "check_output": ("subprocess", "check_output", ["touch", MARK]),
    "eval": ("builtins", "eval", f"open('{MARK}', 'w')"),
    "exec": ("builtins", "exec", f"open('{MARK}', 'w')"),
    "exec of Python 2": ("__builtin__", "exec", f"open('{MARK}', 'w')"),
    "open": ("builtins", "open", MARK + "-x"),
    "import": ("builtins", "__import__", "antigravity"),
    "runpy": ("runpy", "run_path", "/tmp/to-fsdp2-none.py"),
    "importlib": ("importlib", "import_module", "antigravity"),
    "pickle": ("pickle", "loads", b"cos\nsystem\n(S'touch " + MARK.encode() + b"'\ntR."),
    "torch.load": ("torch", "load", "/tmp/to-fsdp2-none.pt"),
    "_load_from_bytes": ("torch.storage", "_load_from_bytes", b"cos\nsystem\n(S'touch " + MARK.encode() + b"'\ntR."),
    "torch.os": ("torch", "os.system", f"touch {MARK}"),
    "torch.hub": ("torch.hub", "load", "x/y"),
    "_import_dotted_name": ("torch._utils", "_import_dotted_name", "antigravity"),
    "extension": ("torch.utils.cpp_extension", "load_inline", "x"),
    "datetime.sys": ("datetime", "sys.exit", 1),
    "pathlib.os": ("pathlib", "os.system", f"touch {MARK}"),
    "touch": ("pathlib", "Path.touch", MARK),
    "numpy": ("numpy.testing._private.utils", "runstring", f"open('{MARK}', 'w')"),
    "numpy.load": ("numpy", "load", "/tmp/to-fsdp2-none.npy"),
    "namedtuple": ("collections", "namedtuple", "x"),
    "partial": ("functools", "partial", f"touch {MARK}"),
    "ctypes": ("ctypes", "CDLL", "libc.so.6"),
    "marshal": ("marshal", "loads", b"c"),
    "codec": ("_codecs", "lookup", "antigravity"),
    "rmtree": ("shutil", "rmtree", "/tmp/to-fsdp2-none"),
    "pty": ("pty", "spawn", "true"),
    "breakpoint": ("builtins", "breakpoint", ()),
    "exit": ("builtins", "exit", 3),
    "from_file": ("torch", "UntypedStorage.from_file", MARK),
    "save": ("torch", "save", MARK),
}
PAYLOADS: dict[str, bytes] = {
    **{key: call(*parts) for key, parts in RUNNING.items()},
    "datetime.sys as a name": state(name("datetime", "sys"), {"path": ["/evil"]}),
    "state of a class": state(name("torch", "Tensor"), (None, {"equal": 1})),
    "state of Parameter": state(name("torch.nn.parameter", "Parameter"), (None, {"__eq__": 1})),
    "state of a function": state(name("torch._utils", "_rebuild_tensor_v2"), (None, {"__doc__": "evil"})),
    "state of a dtype": state(name("torch", "float32"), {"itemsize": 0}),
    "state of a dictionary's class": state(name("collections", "OrderedDict"), (None, {"items": 1})),
    "methods of a dictionary": state(call("collections", "OrderedDict"), {"items": 1, "keys": 2}),
    "state of a stand-in's class": state(name("a", "b"), (None, {"attributes": 1})),
    "getattr": call("builtins", "getattr", "x", "__class__"),
    "getattr of a class": name("builtins", "getattr") + b"(" + name("torch", "Tensor") + value("__subclasses__") + b"tR)R",
    "deep lists": nested(100_000, b"]", b"a"),
    "deep tuples": b")" + b"\x85" * 100_000,
    "deep stand-ins": b")" + (b"\x85" + b"0" * 0) * 10 + nested(5_000, b"ca\nb\n(", b"tR"),
    "a list in itself": b"]q\x00h\x00a",
    "a dictionary in itself": b"}q\x00X\x01\x00\x00\x00ah\x00s",
    "doubling": b"]q\x00" + b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(60)),
    "bytes without end": call("builtins", "bytes", 1 << 45),
    "bytearray without end": call("builtins", "bytearray", 1 << 45),
    "list of a range": name("builtins", "list") + b"(" + call("builtins", "range", 1 << 45) + b"tR",
    "deque of a range": name("collections", "deque") + b"(" + call("builtins", "range", 1 << 45) + b"tR",
    "a storage without end": call("torch", "UntypedStorage", 1 << 60),
    "a tensor without end": call("torch", "Tensor", 1 << 30, 1 << 30),
    "an array of objects": state(
        call("numpy._core.multiarray", "_reconstruct", 0), (1, (1 << 40,), "O", False, b"\xff" * 8)
    ),
    "a codec": call("_codecs", "encode", "x", "antigravity"),
    "a persistent id": value(("storage", "x", "../../../etc/passwd", "cpu", 1 << 40)) + b"Q",
    "a length beyond the file": b"\x8e" + (1 << 60).to_bytes(8, "little"),
    "a place beyond the stack": b"h\xff",
    "an extension": b"\x84\xff\xff\xff\x7f",
    "nothing": b"",
    "a name with a zero": name("a\0b", "c") + b")R",
    "a surrogate": value({"\ud800": 1}),
}  # fmt: skip


def zipped(folder: Path, payload: bytes) -> Path:
    with zipfile.ZipFile(folder / "file.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + payload + b".")
        archive.writestr("archive/byteorder", "little")
        archive.writestr("archive/version", "3\n")
    return folder / "file.pt"


def legacy(folder: Path, payload: bytes) -> Path:
    header = b"".join(pickle.dumps(part, protocol=2) for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}))
    (folder / "file.pt").write_bytes(header + b"\x80\x02" + payload + b"." + pickle.dumps([]))
    return folder / "file.pt"


def bare(folder: Path, payload: bytes) -> Path:
    (folder / "file.bin").write_bytes(b"\x80\x02" + payload + b".")
    return folder / "file.bin"


def dcp(folder: Path, payload: bytes) -> Path:
    (folder / ".metadata").write_bytes(b"\x80\x02" + payload + b".")
    return folder


@pytest.fixture
def unchanged():
    """Nothing was run, and nothing in this process is another thing than before."""
    path, classes = list(sys.path), [dict(vars(found)) for found in (torch.Tensor, torch.nn.Parameter)]
    document = torch._utils._rebuild_tensor_v2.__doc__
    yield
    assert not list(Path("/tmp").glob("to-fsdp2-hostile-mark*"))
    assert sys.path == path
    assert classes == [dict(vars(found)) for found in (torch.Tensor, torch.nn.Parameter)]
    assert torch._utils._rebuild_tensor_v2.__doc__ == document
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("form", [zipped, legacy, bare, dcp])
@pytest.mark.parametrize("payload", PAYLOADS)
def test_nothing_of_a_file_runs(unchanged: None, tmp_path: Path, form: Callable[[Path, bytes], Path], payload: str) -> None:
    path = form(tmp_path, PAYLOADS[payload])
    try:
        read(path)
    except UnreadableCheckpoint as error:
        assert len(str(error)) < 400


def saved(folder: Path) -> Path:
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    save({"model": {"w": torch.ones(4)}, "step": 3}, storage_writer=FileSystemWriter(folder), no_dist=True)
    return folder


@pytest.mark.filterwarnings("ignore")
def test_metadata_that_leads_elsewhere(tmp_path: Path) -> None:
    folder = saved(tmp_path / "checkpoint")
    assert read(folder)[1]["step"] == 3
    original = pickle.loads((folder / ".metadata").read_bytes())

    def outside(found: Any) -> None:
        for place in found.storage_data.values():
            place.relative_path = "../../../../../../etc/passwd"

    def absolute(found: Any) -> None:
        for place in found.storage_data.values():
            place.relative_path = "/etc/passwd"

    def negative(found: Any) -> None:
        for place in found.storage_data.values():
            place.offset = -8

    def endless(found: Any) -> None:
        for entry in found.state_dict_metadata.values():
            if hasattr(entry, "size"):
                entry.size = torch.Size([1 << 50])

    def deep(found: Any) -> None:
        found.planner_data = dict.fromkeys(found.planner_data, ("x",) * 5000)

    def crossed(found: Any) -> None:
        found.planner_data = dict.fromkeys(found.planner_data, ("a", "b")) | {next(iter(found.planner_data)): ("a",)}

    def empty(found: Any) -> None:
        found.storage_data = None

    for change in (outside, absolute, negative, endless, deep, crossed, empty):
        changed = copy.deepcopy(original)
        change(changed)
        (folder / ".metadata").write_bytes(pickle.dumps(changed))
        with pytest.raises(UnreadableCheckpoint):
            read(folder)
    os.unlink(folder / ".metadata")
    os.symlink("/dev/zero", folder / ".metadata")
    with pytest.raises(UnreadableCheckpoint):
        read(folder)


def test_archives_that_are_no_data(unchanged: None, tmp_path: Path) -> None:
    scripted = tmp_path / "scripted.pt"
    torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), str(scripted))
    compressed = tmp_path / "compressed.pt"
    with zipfile.ZipFile(compressed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * 50_000_000)
    packed = tmp_path / "packed.pt"
    with tarfile.open(packed, "w") as archive:
        link = tarfile.TarInfo("storages")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        archive.addfile(tarfile.TarInfo("../../outside"), io.BytesIO())
    for path in (scripted, compressed, packed):
        with pytest.raises(UnreadableCheckpoint):
            read(path)


@pytest.mark.parametrize(
    "header",
    [b"[" * 200_000, b"{}", b"null", b'{"a": 1}', b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}',
     b'{"a": {"dtype": "F32", "shape": [1099511627776], "data_offsets": [0, 4]}}',
     b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [-8, 4]}}', b"\xff"],
)  # fmt: skip
def test_safetensors_headers(tmp_path: Path, header: bytes) -> None:
    for length in (len(header), 1 << 62, 0):
        (tmp_path / "x.safetensors").write_bytes(length.to_bytes(8, "little") + header + b"\0" * 8)
        try:
            read(tmp_path / "x.safetensors")
        except UnreadableCheckpoint as error:
            assert len(str(error)) < 400


def test_what_scripts_save_is_still_read(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    import random

    content = {
        "numpy": numpy.arange(6, dtype=">i4").reshape(2, 3), "number": numpy.float64(0.5), "flag": numpy.bool_(True),
        "fortran": numpy.asfortranarray(numpy.ones((2, 3), dtype="float32")), "text": numpy.array(["a", "bc"]),
        "random": (numpy.random.get_state(), random.getstate(), torch.get_rng_state()),
        "set": {1, 2}, "bytes": b"\xff", "path": tmp_path, "model": torch.nn.Linear(2, 2).state_dict(),
        "sparse": torch.eye(3).to_sparse(), "csr": torch.eye(3).to_sparse_csr(), "size": torch.Size([2]),
    }  # fmt: skip
    torch.save(content, tmp_path / "file.pt")
    _, tree = read(tmp_path / "file.pt")
    for key in ("numpy", "fortran", "text"):
        assert numpy.array_equal(tree[key], content[key])
    assert (tree["number"], tree["flag"], tree["set"], tree["bytes"]) == (0.5, True, {1, 2}, b"\xff")
    assert torch.equal(tree["sparse"].to_dense(), torch.eye(3))
    assert torch.equal(tree["csr"].to_dense(), torch.eye(3))
    assert torch.equal(tree["random"][2], content["random"][2])
    assert set(tree["model"]) == {"weight", "bias"}
