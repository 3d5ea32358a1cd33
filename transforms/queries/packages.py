"""The packages that code imports, and whether their objects matter: classes of unknown ones may hold anything."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable

from .file import File

NO_MODELS = frozenset(
    {"torch", "numpy", "scipy", "PIL", "cv2", "tqdm", "yaml", "matplotlib", "seaborn", "pandas", "sklearn", "skimage", "h5py",
     "tensorboard", "tensorboardX", "wandb", "einops", "omegaconf", "fire", "absl", "requests", "termcolor", "lmdb", "nltk",
     "sentencepiece", "tiktoken", "tokenizers", "psutil", "imageio", "pycocotools", "packaging", "typing_extensions", "rich",
     "pytest", "setuptools", "yacs", "addict", "regex", "safetensors", "pyarrow", "datasets", "boto3", "colorama", "dotenv"}
)  # fmt: skip
"""Packages without model classes of their own; the model classes of torch are known."""
NO_GRADIENTS = NO_MODELS | frozenset(
    {"torchvision", "torchaudio", "torchtext", "transformers", "timm", "diffusers", "accelerate", "peft", "evaluate", "apex",
     "huggingface_hub", "sentence_transformers", "flash_attn", "xformers", "triton", "bitsandbytes", "torchmetrics", "torchinfo",
     "torchsummary", "thop", "fvcore", "hydra", "mmcv", "mmengine", "detectron2", "fairscale", "clearml", "mlflow", "swanlab"}
)  # fmt: skip
"""Packages that ask autograd for no gradients of a program's parameters but by ``backward``."""
ASK_FOR_GRADIENTS = frozenset(
    {"higher", "learn2learn", "pyhessian", "hessian_eigenthings", "backpack", "curvlinops", "laplace", "botorch", "torchopt",
     "asdfghjkl", "asdl", "betty", "torchmeta", "nngeometry", "kfac", "torchjd", "LibMTL", "torch_influence", "trak",
     "torchmin", "torchdiffeq", "torchsde", "torchcde"}
)  # fmt: skip
"""Packages that call ``torch.autograd.grad`` by parameters of a model that they are given."""
_OTHER_FRAMEWORKS = re.compile(
    r"^\s*(?:import|from)\s+(?:paddle|jax|flax|haiku|equinox|optax|mindspore|mxnet|megengine|oneflow)\b",
    re.MULTILINE,
)
_OF_TORCH = re.compile(r"^\s*(?:import|from)\s+torch\b|\btorch\.[a-z]|[\"']torch\b", re.MULTILINE)
_OF_TESTS = re.compile(r"(^|/)(tests?/|test_[^/]*$|conftest)")
_BESIDE_PACKAGES = re.compile(r"(?i)(.*_)?(tests?|testing|examples?|tutorials?|benchmarks?|docs?|demos?)$")
_BY_NAME = re.compile(r"\b(?:importlib\.import_module|import_module\(|__import__|hub\.load|instantiate\(|locate\()")


def is_test(path: str) -> bool:
    """Whether a file holds tests, or what they share."""
    return _OF_TESTS.search(path) is not None


def is_beside_package(folder: str) -> bool:
    """Whether a folder, by its name, is not installed with the package that it is about."""
    return _BESIDE_PACKAGES.match(folder) is not None


def strange_packages(files: Iterable[File], known: frozenset[str] = NO_MODELS) -> frozenset[str]:
    """The packages that files import at any depth, but for those of the repository, of Python, and ``known`` ones.

    What is imported by a name that is put together at run time is one of them, as ``"?"``.
    """
    found = {name.partition(".")[0] for name in strange_names(files)}
    return frozenset(found - known - sys.stdlib_module_names - {"__future__"})


def strange_names(files: Iterable[File]) -> frozenset[str]:
    """What files import that is not the repository's, in full: ``torch_ema.ExponentialMovingAverage``."""
    found: set[str] = set()
    for file in files:
        if _BY_NAME.search(file.source.text):
            found.add("?")
        for node in file.nodes(ast.Import, ast.ImportFrom):
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.Import):
                found |= {name for name in names if not _is_own(file, name)}
            elif not node.level and not any(_is_own(file, name) for name in (node.module or "", *_below(node))):
                found.update(_below(node))
    return frozenset(found)


def is_of_other_framework(text: str) -> bool:
    """Whether a file is written for another framework, so that what has a model's methods there is none of torch's."""
    return _OTHER_FRAMEWORKS.search(text) is not None and _OF_TORCH.search(text) is None


def _below(node: ast.ImportFrom) -> list[str]:
    return [f"{node.module}.{alias.name}" for alias in node.names]


def _is_own(file: File, module: str) -> bool:
    return file.program.flow.modules.find(file.index, module) is not None
