"""How values pass through code that is not in the repository: torch, the standard library, builtins."""

from __future__ import annotations

import re
import sys

PASS_THROUGH: frozenset[str] = frozenset(
    {
        "torch.compile", "torch.jit.script", "torch.nn.SyncBatchNorm.convert_sync_batchnorm", "builtins.next",
        "typing.cast", "torch.nn.utils.convert_sync_batchnorm", "torch._dynamo.optimize", "builtins.staticmethod",
        "weakref.proxy",
    }
)  # fmt: skip
"""Functions whose result is, or stands for, their arguments."""

COLLECT: frozenset[str] = frozenset(
    {
        "builtins.list", "builtins.tuple", "builtins.set", "builtins.frozenset", "builtins.sorted", "builtins.iter",
        "builtins.filter", "builtins.reversed", "builtins.enumerate", "builtins.zip", "builtins.map", "builtins.dict",
        "itertools.chain", "itertools.chain.from_iterable", "collections.OrderedDict", "collections.deque",
        "builtins.max", "builtins.min", "builtins.sum", "copy.copy",
    }
)  # fmt: skip
"""Functions whose result holds the elements of their arguments."""

DICTIONARIES = frozenset({"builtins.dict", "collections.OrderedDict"})
NAMESPACES = frozenset({"argparse.Namespace", "types.SimpleNamespace"})
"""Classes whose objects hold what they are called with, under the same names."""
PARTIAL: frozenset[str] = frozenset({"functools.partial", "functools.partialmethod"})

RETURN_SELF: frozenset[str] = frozenset(
    {
        "to", "cuda", "cpu", "train", "eval", "half", "float", "double", "bfloat16", "requires_grad_", "to_empty",
        "apply", "type", "share_memory", "xpu", "npu", "compile",
    }
)  # fmt: skip
"""Methods of modules that return the module."""

DERIVED: dict[str, str] = {
    "parameters": "parameters",
    "named_parameters": "parameters",
    "get_parameter": "parameters",
    "buffers": "buffers",
    "named_buffers": "buffers",
    "modules": "modules",
    "named_modules": "modules",
    "children": "modules",
    "fsdp_modules": "modules",
    "named_children": "modules",
    "get_submodule": "modules",
    "get_input_embeddings": "modules",
    "get_output_embeddings": "modules",
    "state_dict": "state_dict",
    "optim_state_dict": "optimizer_state",
    "full_optim_state_dict": "optimizer_state",
    "sharded_optim_state_dict": "optimizer_state",
    "no_sync": "no_sync",
    "state_dict_type": "state_dict_context",
    "summon_full_params": "summon",
    "clip_grad_norm_": "norm",
}
"""Methods of a wrapped or raw model, and what their result is in relation to it."""

STAYS_DERIVED: frozenset[str] = frozenset(
    {
        "items", "values", "keys", "copy", "get", "pop", "setdefault", "data", "detach", "clone", "to", "cpu", "cuda",
        "float", "half", "double", "bfloat16", "contiguous", "__getitem__", "__iter__", "__next__", "__enter__",
        "named_parameters", "parameters", "state_dict", "modules", "named_modules", "children", "named_children",
    }
)  # fmt: skip
"""Methods whose result is still the parameters, state dict … that they are called on."""

TENSORS: frozenset[str] = frozenset({"parameters", "gradients", "statistic"})
"""Kinds of derived values that are tensors which FSDP2 shards, or are computed from them."""

TENSOR_MATH: frozenset[str] = frozenset(
    {
        "norm", "sum", "mean", "abs", "max", "min", "amax", "amin", "std", "var", "square", "pow", "sqrt", "prod", "dot",
        "isnan", "isinf", "isfinite", "any", "all", "linalg_norm", "vector_norm", "matrix_norm", "stack", "cat",
        "flatten", "view", "reshape", "view_as", "argmax", "argmin", "median", "count_nonzero", "mul", "div",
        "add", "sub", "clamp", "histc", "quantile", "topk", "sort", "unique", "logsumexp", "log",
        "where", "_foreach_norm", "get_total_norm", "svd", "svdvals",
        "matmul", "mm", "t", "mul_", "div_", "add_", "sub_", "lerp_", "clamp_", "exp", "expm1", "log1p", "log2", "log10",
        "sigmoid", "tanh", "softmax", "softplus", "relu", "rsqrt", "reciprocal", "neg", "squeeze",
    }
)  # fmt: skip
"""Methods and functions of tensors whose result on a shard is the shard's, not the tensor's."""

LAID_OUT_ALIKE = frozenset(f"torch.{name}_like" for name in ("zeros", "ones", "empty", "full", "rand", "randn"))
"""Functions whose result is sharded as the tensor that they are given is."""

MODULES_OF_MODULES = frozenset(f"torch.nn.{name}" for name in ("Sequential", "ModuleList", "ModuleDict"))
"""Modules of torch that hold what they are given, and give it back by index, by key or in a loop."""

UNWRAPS = re.compile(r"(^|\.)(unwrap_model|unwrap_ddp|de_parallel|extract_model_from_parallel|get_model_from_wrapper)$")
"""Functions of libraries that give the model inside of a wrapper, or what has none as it is."""

ADDS_MODULE = frozenset({"add_module", "register_module"})
"""Methods of modules that give them a part under a name."""

FIELDS: frozenset[str] = frozenset({"dataclasses.field", "attr.ib", "attrs.field", "pydantic.Field"})
"""Functions that say in a class what an attribute of its objects is."""
PARAMETER = frozenset({"torch.nn.Parameter", "torch.nn.parameter.Parameter"})

CONTAINER_READS: frozenset[str] = frozenset(
    {"values", "items", "pop", "popitem", "popleft", "copy", "__iter__", "__next__"}
)
CONTAINER_WRITES: frozenset[str] = frozenset(
    {"append", "add", "extend", "insert", "update", "appendleft", "add_param_group"}
)


def is_tensor(name: str) -> bool:
    """Whether a call of this name from torch makes a tensor."""
    if name.startswith(("torch.nn.functional.", "torch.Tensor.")) or name in PARAMETER:
        return True
    return name.startswith("torch.") and name.count(".") == 1 and name != "torch.load"


def is_tensor_math(name: str) -> bool:
    """Whether a function of this name from outside the repository computes tensors from tensors."""
    return name.startswith("torch.") and name.rpartition(".")[2] in TENSOR_MATH


def is_optimizer(name: str) -> bool:
    """Whether a call of this name from outside the repository builds an optimizer."""
    if name.startswith("torch.optim.") and not name.startswith(("torch.optim.lr_scheduler.", "torch.optim.swa_utils.")):
        return name.rpartition(".")[2][:1].isupper()
    last = name.rpartition(".")[2]
    return last in _OPTIMIZERS or (last.endswith(("Optimizer", "Adam", "AdamW", "SGD")) and last[:1].isupper())


def is_optimizer_class(name: str) -> bool:
    """Whether a class of this name from outside the repository is an optimizer's, and so what derives from it.

    Beside those that are optimizers by name, classes of modules for optimizers: ``bitsandbytes.optim.optimizer.Optimizer2State``.
    """
    *modules, last = name.split(".")
    of_optimizers = not {"optim", "optimizer", "optimizers"}.isdisjoint(modules) and "lr_scheduler" not in modules
    return is_optimizer(name) or (of_optimizers and last[:1].isupper() and not last.endswith(_ABOUT_OPTIMIZERS))


_ABOUT_OPTIMIZERS = ("Hook", "Config", "Scheduler", "Args", "Constructor", "Model", "Type", "Enum", "Error")
_OPTIMIZERS = frozenset(
    {"Adafactor", "Lion", "LAMB", "Lamb", "LARS", "Adam8bit", "AdamW8bit", "PagedAdamW", "PagedAdamW8bit",
     "AnyPrecisionAdamW", "FusedAdam", "FusedSGD", "FusedLAMB", "Prodigy", "Sophia", "SophiaG", "Muon"}
)  # fmt: skip


def is_scheduler(name: str) -> bool:
    """Whether a call of this name builds a learning-rate scheduler."""
    return name.startswith("torch.optim.lr_scheduler.") or (
        name.startswith("transformers.") and "scheduler" in name.rpartition(".")[2]
    )


_NO_MODULES = (
    "torch.utils.data.", "torch.optim.lr_scheduler.", "torch.distributed.fsdp.", "torch.amp.", "torch.cuda.amp.", "numpy.",
    "torchvision.transforms.", "torchvision.datasets.", "torchvision.utils.", "torchvision.io.", "PIL.", "cv2.", "skimage.",
    "matplotlib.", "pandas.", "scipy.", "sklearn.", "albumentations.", "tiktoken.", "sentencepiece.", "tokenizers.",
    "omegaconf.", "yaml.", "yacs.", "ml_collections.", "huggingface_hub.", "torch.utils.tensorboard.", "tensorboardX.", "tqdm.",
    "wandb.", "loguru.", "librosa.", "soundfile.", "h5py.", "lmdb.", "datasets.",
)  # fmt: skip
_MAKES_MODULES = (".FullyShardedDataParallel", ".FSDPModule", ".fully_shard", ".wrap.wrap")
_WITHOUT_PARAMETERS = re.compile(
    r"torch\.nn\.(modules\.\w+\.)?(?!AdaptiveLogS|Linear)(\w*(Loss|Pool[123]d|Pad[123]d)|Dropout\w*|Softm\w+|LogSoftmax|ReLU6?|LeakyReLU|GELU|SiLU|ELU|Tanh|Sigmoid"
    r"|Hard\w+|Identity|(Unf|F)latten|Upsample\w*|PixelShuffle|PixelUnshuffle|CosineSimilarity|PairwiseDistance|Fold|Unfold)"
)
"""Modules of torch that have neither parameters nor buffers that change."""
_PASSES_ON = frozenset(
    {"functools", "itertools", "contextlib", "pickle", "importlib", "multiprocessing", "concurrent", "queue", "weakref",
     "operator", "types", "dataclasses", "inspect", "threading", "asyncio", "unittest", "runpy"}
)  # fmt: skip
"""Modules of the standard library that give what they were given, or what nobody sees."""


def has_no_parameters(name: str) -> bool:
    """Whether modules of a class of torch have no parameters, so that nothing is gathered for them."""
    return _WITHOUT_PARAMETERS.fullmatch(name) is not None


def makes_no_modules(name: str) -> bool:
    """Whether a function or class gives no model that may be sharded: nor do copies, which are plain."""
    top = name.partition(".")[0]
    if name == "builtins.eval" or name.endswith(_MAKES_MODULES):
        return False  # eval: whatever the text names
    return (top in sys.stdlib_module_names and top not in _PASSES_ON) or name.startswith(("builtins.", *_NO_MODULES))
