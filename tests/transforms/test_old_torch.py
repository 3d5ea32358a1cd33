"""Which places only a torch without fully_shard reaches, however the test of its version is written."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

WRAP = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

"""
USE = "FSDP.rekey_optim_state_dict({}, 'names', model)"
"""Something that would be a manual finding."""

UTILITIES = {
    "pkg/__init__.py": "",
    "pkg/parsing.py": """\
def digit_version(text, length=4):
    release = [int(part) for part in text.split("+")[0].split(".")]
    if len(release) < length:
        release += [0] * (length - len(release))
    return tuple(release)
""",
    "pkg/versions.py": """\
import torch

from .parsing import digit_version

TORCH_TEXT = torch.__version__
TORCH_VERSION = digit_version(torch.__version__)
TORCH_MAJOR, TORCH_MINOR = [int(part) for part in torch.__version__.split(".")[:2]]


def torch_at_least(wanted):
    return digit_version(torch.__version__) >= digit_version(wanted)
""",
    "pkg/utils.py": "from .versions import TORCH_MAJOR, TORCH_MINOR, TORCH_TEXT, TORCH_VERSION, torch_at_least\n",
}

BRANCHES = {
    "constant of another file": "from pkg.utils import TORCH_VERSION\nif TORCH_VERSION < (2, 0):\n    {use}\n",
    "text of another file": "from pkg import utils\nif utils.TORCH_TEXT < '2.0':\n    {use}\n",
    "parser of another file": (
        "from pkg.parsing import digit_version\nfrom pkg.utils import TORCH_TEXT\n"
        "if digit_version(TORCH_TEXT) >= digit_version('2.0.0'):\n    pass\nelse:\n    {use}\n"
    ),
    "parts": "from pkg.utils import TORCH_MAJOR, TORCH_MINOR\nif TORCH_MAJOR == 1 and TORCH_MINOR < 13:\n    {use}\n",
    "function": "from pkg.utils import torch_at_least\nif not torch_at_least('2.1'):\n    {use}\n",
    "middle branch": (
        "import sys\nfrom pkg.utils import TORCH_VERSION\nif sys.platform == 'win32':\n    pass\n"
        "elif TORCH_VERSION < (1, 13):\n    {use}\nelse:\n    pass\n"
    ),
    "class body": (
        "from pkg.utils import TORCH_VERSION\n\nclass Helper:\n    if TORCH_VERSION < (2, 0):\n\n"
        "        @staticmethod\n        def names(model):\n            {use}\n"
    ),
    "early return": (
        "from pkg.utils import TORCH_VERSION\n\ndef names(model):\n    if TORCH_VERSION >= (2, 0):\n"
        "        return None\n    {use}\n"
    ),
    "assertion": "from pkg.utils import TORCH_VERSION\n\ndef names(model):\n    assert TORCH_VERSION < (2, 0)\n    {use}\n",
    "conditional expression": "from pkg.utils import TORCH_VERSION\nkeys = {use} if TORCH_VERSION < (2, 0) else None\n",
    "second operand": "from pkg.utils import TORCH_VERSION\nkeys = TORCH_VERSION < (2, 0) and {use}\n",
    "skipped test": (
        "import pytest\nfrom pkg.utils import TORCH_VERSION\n\n"
        "@pytest.mark.skipif(TORCH_VERSION >= (2, 0), reason='old')\ndef test_names():\n    {use}\n"
    ),
    "parser found somewhere": (
        "try:\n    from packaging.version import parse\n"
        "except ImportError:\n    from distutils.version import LooseVersion as parse\n"
        "if parse(torch.__version__) < parse('2.0'):\n    {use}\n"
    ),
    "torch that may be missing": (
        "try:\n    import torch\nexcept ImportError:\n    torch = None\nif torch.__version__ < '2.0':\n    {use}\n"
    ),
    "flag of an import": (
        "try:\n    from torch.distributed.fsdp import fully_shard\n    HAS_IT = True\nexcept ImportError:\n    HAS_IT = False\n"
        "if not HAS_IT:\n    {use}\n"
    ),
    "handler of an import": (
        "try:\n    from torch.distributed.fsdp import fully_shard\nexcept ImportError:\n    {use}\n"
    ),
    "local name": (
        "from packaging import version\n\ndef names(model):\n    installed = version.parse(torch.__version__)\n"
        "    if installed < version.parse('2.1'):\n        {use}\n"
    ),
}  # fmt: skip

REACHED = {
    "other side": "from pkg.utils import TORCH_VERSION\nif TORCH_VERSION < (2, 0):\n    pass\nelse:\n    {use}\n",
    "negated": "from pkg.utils import torch_at_least\nif torch_at_least('2.1'):\n    {use}\n",
    "newer than the oldest": "from pkg.utils import TORCH_VERSION\nif TORCH_VERSION < (2, 8):\n    {use}\n",
    "after a branch that goes on": "from pkg.utils import TORCH_VERSION\nif TORCH_VERSION >= (2, 0):\n    pass\n{use}\n",
    "a constant": "USE_OLD = False\nif USE_OLD:\n    {use}\n",
    "a number": "LEVEL = 1\nif LEVEL > 2:\n    {use}\n",
    "a flag beside the version": (
        "from pkg.utils import TORCH_VERSION\nOLD = False\nif OLD and TORCH_VERSION >= (2, 0):\n    {use}\n"
    ),
    "a name of several values": (
        "from pkg.utils import TORCH_VERSION\nflag = False\nif TORCH_VERSION >= (2, 0):\n    flag = True\n"
        "if not flag:\n    {use}\n"
    ),
    "an import that newer torch lacks": (
        "try:\n    from torch.distributed.fsdp import flat_param\nexcept ImportError:\n    {use}\n"
    ),
    "only a part of the version": (
        "def minor_version(text):\n    return int(text.split('.')[1])\n\n"
        "if minor_version(torch.__version__) < minor_version('1.8'):\n    {use}\n"
    ),
    "another package": "import numpy\nif numpy.__version__ < '1.20':\n    {use}\n",
    "kept test": (
        "import pytest\nfrom pkg.utils import TORCH_VERSION\n\n"
        "@pytest.mark.skipif(TORCH_VERSION < (2, 0), reason='new')\ndef test_names():\n    {use}\n"
    ),
}  # fmt: skip


def levels_of_use(code: str) -> set[Level]:
    analysis, _ = analyse_texts({**UTILITIES, "train.py": WRAP + code.replace("{use}", USE)})
    return {f.level for f in analysis.findings if "rekey_optim_state_dict" in f.symbol}


@pytest.mark.parametrize("code", BRANCHES.values(), ids=BRANCHES)
def test_what_only_old_torch_reaches_is_right_as_it_is(code: str) -> None:
    assert levels_of_use(code) == {Level.OK}


@pytest.mark.parametrize("code", REACHED.values(), ids=REACHED)
def test_what_newer_torch_may_reach_counts(code: str) -> None:
    assert levels_of_use(code) == {Level.MANUAL}
