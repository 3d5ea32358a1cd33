"""New import lines stand where a reader and a linter expect them."""

from __future__ import annotations

import pytest
from migrating import analyse_texts


def head_of(before: str) -> str:
    """The text in front of the first code that is no import."""
    _, after = analyse_texts({"train.py": before})
    return after["train.py"].partition("\n\nmodel")[0].strip("\n")


_BODY = "\n\nmodel = FSDP(build(), use_orig_params=True)\ntorch.save(model.state_dict(), 'm.pt')\n"


@pytest.mark.parametrize(
    ("imports", "expected"),
    [
        (
            "import torch\n"
            "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nfrom torch.utils.data import Dataset",
            "import torch\n"
            "from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict\n"
            "from torch.distributed.fsdp import fully_shard\n"
            "from torch.utils.data import Dataset",
        ),
        (
            "import numpy as np\nimport torch\nimport yaml\nfrom torch import nn\n"
            "from torch.distributed.fsdp.fully_sharded_data_parallel import FullyShardedDataParallel as FSDP\n"
            "from torch.optim import lr_scheduler\nfrom tqdm import tqdm",
            "import numpy as np\nimport torch\nimport yaml\nfrom torch import nn\n"
            "from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict\n"
            "from torch.distributed.fsdp import fully_shard\n"
            "from torch.optim import lr_scheduler\nfrom tqdm import tqdm",
        ),
        (
            "from torch import nn\nimport torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nimport os",
            "from torch import nn\nimport torch\n"
            "from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict\n"
            "from torch.distributed.fsdp import fully_shard\n"
            "import os",
        ),
    ],
    ids=["straight imports first", "a third party between", "in no order"],
)
def test_a_sorted_block_stays_sorted(imports: str, expected: str) -> None:
    assert head_of(imports + _BODY) == expected


def test_an_import_under_another_name_keeps_its_line() -> None:
    head = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "from torch.distributed.fsdp import StateDictType\n"
    )
    unknown = (
        "\n\ndef check(model, given):\n    assert isinstance(model, FSDP)\n"
        "    FSDP.set_state_dict_type(given, StateDictType.LOCAL_STATE_DICT)\n"
    )
    _, after = analyse_texts({"train.py": head + unknown})
    assert "import FSDPModule, FullyShardedDataParallel as FSDP" not in after["train.py"]


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (
            "def train(trainer):\n    trainer.model.clip_grad_norm_(1.0)\n",
            "from torch.nn.utils import clip_grad_norm_\n\n\ndef train(trainer):\n",
        ),
        (
            '"""Training."""\n\n\n@traced\ndef train(trainer):\n    trainer.model.clip_grad_norm_(1.0)\n',
            '"""Training."""\n\nfrom torch.nn.utils import clip_grad_norm_\n\n\n@traced\ndef train(trainer):\n',
        ),
        (
            "#!/usr/bin/env python\n# Training.\ndef train(trainer):\n    trainer.model.clip_grad_norm_(1.0)\n",
            "#!/usr/bin/env python\n# Training.\n\nfrom torch.nn.utils import clip_grad_norm_\n\n\ndef train(trainer):\n",
        ),
        (
            "# License.\n\n# What trains.\ndef train(trainer):\n    trainer.model.clip_grad_norm_(1.0)\n",
            "# License.\n\nfrom torch.nn.utils import clip_grad_norm_\n\n\n# What trains.\ndef train(trainer):\n",
        ),
    ],
)
def test_the_first_import_of_a_file_stands_apart(before: str, expected: str) -> None:
    wrap = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nfrom steps import train\n\n\n"
        "class Trainer:\n    def __init__(self, model):\n        self.model = FSDP(model)\n\n\ntrain(Trainer(build()))\n"
    )
    _, after = analyse_texts({"main.py": wrap, "steps.py": before})
    assert after["steps.py"].startswith(expected), after["steps.py"]


def test_imports_between_functions_take_nothing_on() -> None:
    head = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
    text = (
        "def shard(model):\n    return FSDP(model, use_orig_params=True)\n\n\nshard(build())\n"
        "from torch.distributed.fsdp import _state_dict_utils\n\n\ndef load_hook(module, *rest):\n    return {'fsdp': FSDP}\n\n\n"
        "_state_dict_utils._sharded_pre_load_state_dict_hook = load_hook\n"
    )
    _, after = analyse_texts({"train.py": head + text})
    assert after["train.py"].index("import fully_shard\n") < after["train.py"].index("def shard")


def test_names_that_share_lines_are_packed_again() -> None:
    before = (
        "import torch\nfrom torch.distributed.fsdp import (FSDPModule, FullyShardedDataParallel,\n"
        "                                    register_fsdp_forward_method)\n\n"
        "print(FSDPModule, register_fsdp_forward_method)\nmodel = FullyShardedDataParallel(build())\n"
    )
    _, after = analyse_texts({"train.py": before})
    expected = (
        "import torch\nfrom torch.distributed.fsdp import (FSDPModule, fully_shard,\n"
        "                                    register_fsdp_forward_method)\n\n"
    )
    assert after["train.py"].startswith(expected)


def test_what_python_brings_stands_with_what_python_brings() -> None:
    before = (
        "import os\nfrom pathlib import Path\n\nimport torch\n"
        "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\n"
        "def context(model, last):\n    return Path if last else model.no_sync\n\n\n"
        "model = DDP(build(), broadcast_buffers=False)\n"
        "with context(model, False)():\n    model(os.environ).backward()\n"
    )
    _, after = analyse_texts({"train.py": before})
    expected = "import os\nfrom contextlib import contextmanager\nfrom functools import partial\nfrom pathlib import Path\n"
    assert after["train.py"].startswith(expected)


def test_an_import_in_a_function_that_reads_it_no_more_goes_though_the_module_has_the_name() -> None:
    before = (
        "import torch\nfrom packaging import version\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
        "def state_of(model, optimizer):\n    if version.parse(torch.__version__) < version.parse('2.3'):\n"
        "        return FSDP.optim_state_dict(model, optimizer)\n    return None\n\n\n"
        "def scattered(model, state):\n"
        "    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "    return FSDP.scatter_full_optim_state_dict(state, model)\n\n\n"
        "def train(net, optimizer, state):\n    model = FSDP(net)\n"
        "    optimizer.load_state_dict(scattered(model, state))\n    return state_of(model, optimizer)\n"
    )
    _, after = analyse_texts({"train.py": before})
    assert "FSDP.optim_state_dict" in after["train.py"] and "scatter_full" not in after["train.py"]
    assert after["train.py"].count("FullyShardedDataParallel as FSDP") == 1
