"""Where a wrap stands in its statement, and what stands there afterwards."""

from __future__ import annotations

import re

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

IMPORT = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
MIGRATED = "from torch.distributed.fsdp import fully_shard\n"

PLACES = {
    "rebinding": (
        "def f(model):\n    model = FSDP(model)\n    return model\n",
        "def f(model):\n    fully_shard(model)\n    return model\n",
    ),
    "another name": (
        "def f(model):\n    wrapped = FSDP(model)\n    return wrapped\n",
        "def f(model):\n    fully_shard(model)\n    wrapped = model\n    return wrapped\n",
    ),
    "a model built in the call": (
        "def f(build):\n    net = FSDP(build().cuda())\n    return net\n",
        "def f(build):\n    net = build().cuda()\n    fully_shard(net)\n    return net\n",
    ),
    "an annotated name": (
        "def f(net):\n    net: FSDP = FSDP(module=net)\n    return net\n",
        "def f(net):\n    fully_shard(net)\n    return net\n",
    ),
    "a file with tabs": (
        "def f(model, many):\n\tmodel = FSDP(model) if many else model\n\treturn model\n",
        "def f(model, many):\n\tif many:\n\t\tfully_shard(model)\n\treturn model\n",
    ),
    "a return": (
        "def f(build):\n    return FSDP(build())\n",
        "def f(build):\n    model = build()\n    fully_shard(model)\n    return model\n",
    ),
    "an argument": (
        "def f(model, compile):\n    return compile(FSDP(model), 3)\n",
        "def f(model, compile):\n    fully_shard(model)\n    return compile(model, 3)\n",
    ),
    "a method call on the result": (
        "def f(model):\n    model = FSDP(model).train()\n    return model\n",
        "def f(model):\n    fully_shard(model)\n    model = model.train()\n    return model\n",
    ),
    "a choice": (
        "def f(model, many):\n    model = FSDP(model) if many else model\n    return model\n",
        "def f(model, many):\n    if many:\n        fully_shard(model)\n    return model\n",
    ),
    "a choice between two models": (
        "def f(build, many):\n    net = FSDP(build(1)) if many else build(2)\n    return net\n",
        "def f(build, many):\n    if many:\n        net = build(1)\n        fully_shard(net)\n    else:\n"
        "        net = build(2)\n    return net\n",
    ),
    "a returned choice": (
        "def f(model, many):\n    return FSDP(model) if many else model\n",
        "def f(model, many):\n    if many:\n        fully_shard(model)\n    return model\n",
    ),
    "behind a colon": (
        "def f(model, many):\n    if many: model = FSDP(model)\n    return model\n",
        "def f(model, many):\n    if many:\n        fully_shard(model)\n    return model\n",
    ),
    "between semicolons": (
        "def f(model):\n    print(1); model = FSDP(model); print(2)\n    return model\n",
        "def f(model):\n    print(1);\n    fully_shard(model); print(2)\n    return model\n",
    ),
    "elements of a list by index": (
        "def f(net):\n    for i, layer in enumerate(net.layers):\n        net.layers[i] = FSDP(layer)\n",
        "def f(net):\n    for layer in net.layers:\n        fully_shard(layer)\n",
    ),
    "an index that is used": (
        "def f(net):\n    for i, layer in enumerate(net.layers):\n        print(i)\n        net.layers[i] = "
        "FSDP(layer)\n",
        "def f(net):\n    for i, layer in enumerate(net.layers):\n        print(i)\n        fully_shard(layer)\n",
    ),
    "children by name": (
        "def f(net):\n    for name, child in net.named_children():\n        setattr(net, name, FSDP(child))\n",
        "def f(net):\n    for name, child in net.named_children():\n        fully_shard(child)\n"
        "        setattr(net, name, child)\n",
    ),
    "a comprehension": (
        "def f(models):\n    return [FSDP(m) for m in models]\n",
        "def f(models):\n    def shard(model):\n        fully_shard(model)\n        return model\n\n"
        "    return [shard(m) for m in models]\n",
    ),
    "an operand that may not be evaluated": (
        "def f(model, many):\n    return many and FSDP(model)\n",
        "def f(model, many):\n    def shard(model):\n        fully_shard(model)\n        return model\n\n"
        "    return many and shard(model)\n",
    ),
    "a test of an elif": (
        "def f(model, x, run):\n    if x:\n        pass\n    elif run(FSDP(model)):\n        pass\n",
        "def f(model, x, run):\n    def shard(model):\n        fully_shard(model)\n        return model\n\n"
        "    if x:\n        pass\n    elif run(shard(model)):\n        pass\n",
    ),
    "two arguments": (
        "def f(use, A):\n    return use(FSDP(A(1)), FSDP(A(2)))\n",
        "def f(use, A):\n    model = A(1)\n    fully_shard(model)\n    model_2 = A(2)\n    fully_shard(model_2)\n"
        "    return use(model, model_2)\n",
    ),
    "two statements with an argument each": (
        "def f(use, A):\n    use(FSDP(A(1)))\n    use(FSDP(A(2)))\n",
        "def f(use, A):\n    model = A(1)\n    fully_shard(model)\n    use(model)\n    model = A(2)\n"
        "    fully_shard(model)\n    use(model)\n",
    ),
    "a model that is built behind another": (
        "class Net(torch.nn.Module):\n    pass\n\n\ndef f():\n    a, b = Net(), FSDP(Net())\n    return a, b\n",
        "class Net(torch.nn.Module):\n    pass\n\n\ndef f():\n"
        "    def shard(model):\n        fully_shard(model)\n        return model\n\n"
        "    a, b = Net(), shard(Net())\n    return a, b\n",
    ),
    "two lambdas, and a function of the same name": (
        "def f(net, shard):\n    shard(net)\n    return lambda: FSDP(net), lambda: FSDP(module=net)\n",
        "def f(net, shard):\n    shard(net)\n    def shard_2(model):\n        fully_shard(model)\n        return model\n\n"
        "    def shard_3(model):\n        fully_shard(model)\n        return model\n\n"
        "    return lambda: shard_2(net), lambda: shard_3(net)\n",
    ),
    "a choice whose other model holds a wrap": (
        "def f(net, other, c):\n    net = FSDP(net) if c else other(FSDP(net))\n    return net\n",
        "def f(net, other, c):\n    def shard(model):\n        fully_shard(model)\n        return model\n\n"
        "    if c:\n        fully_shard(net)\n    else:\n        net = other(shard(net))\n    return net\n",
    ),
    "a returned choice between two wraps": (
        "def f(net, c):\n    return FSDP(net) if c else FSDP(module=net)\n",
        "def f(net, c):\n    def shard(model):\n        fully_shard(model)\n        return model\n\n"
        "    if c:\n        fully_shard(net)\n        return net\n    return shard(net)\n",
    ),
    "a choice in a module": (
        "net = FSDP(A) if C else FSDP(B)\n",
        "def shard(model):\n    fully_shard(model)\n    return model\n\n"
        "if C:\n    fully_shard(A)\n    net = A\nelse:\n    net = shard(B)\n",
    ),
    "a choice that a wrap decides": (
        "def f(net, test):\n    return FSDP(net) if test(FSDP(net.head)) else net\n",
        "def f(net, test):\n    fully_shard(net.head)\n    if test(net.head):\n        fully_shard(net)\n    return net\n",
    ),
    "a model built of a wrap": (
        "def f(build):\n    net = FSDP(build(FSDP(build())))\n    return net\n",
        "def f(build):\n    model = build()\n    fully_shard(model)\n    net = build(model)\n    fully_shard(net)\n"
        "    return net\n",
    ),
    "a returned model built of wraps": (
        "def f(build, parts):\n    return FSDP(build([FSDP(p) for p in parts]))\n",
        "def f(build, parts):\n    def shard(model):\n        fully_shard(model)\n        return model\n\n"
        "    model = build([shard(p) for p in parts])\n    fully_shard(model)\n    return model\n",
    ),
}

REFUSED = {
    "a wrap of an argument that holds another wrap": (
        "def f(build, use, net):\n    return use(FSDP(build(FSDP(net.head))))\n"
    ),
    "a model that the call does not name": "def f(*args):\n    return FSDP(*args)\n",
    "a model that is wrapped twice": "def f(model):\n    model = FSDP(FSDP(model))\n    return model\n",
    "arguments that only a comprehension knows": (
        "def f(models, groups):\n    return {k: FSDP(m, process_group=groups[k]) for k, m in models.items()}\n"
    ),
}


@pytest.mark.parametrize(("before", "after"), PLACES.values(), ids=PLACES)
def test_statements_take_the_place_of_the_wrap(before: str, after: str) -> None:
    _, results = analyse_texts({"train.py": f"{IMPORT}\n\n{before}"})
    assert results["train.py"] == f"{MIGRATED}\n\n{after}"


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_a_wrap_without_a_place_is_left_alone(text: str) -> None:
    before = f"{IMPORT}\n\n{text}"
    analysis, results = analyse_texts({"train.py": before})
    assert results["train.py"] == before
    assert any(f.rule == "FS101" and f.level is Level.MANUAL and not f.blocked_by for f in analysis.findings)


WRAPPERS = "import functools\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"

FUNCTIONS = {
    "lambdas": "def f(net):\n    return {'ddp': lambda: DDP(net), 'fsdp': lambda: FSDP(net)}\n",
    "comprehensions": "def f(nets):\n    return [FSDP(m) for m in nets[1:]] + [DDP(m) for m in nets[:1]]\n",
    "partials": "def f():\n    return functools.partial(FSDP, use_orig_params=True), functools.partial(FSDP)\n",
    "a partial and a lambda": "def f():\n    return functools.partial(FSDP), lambda m: FSDP(m)\n",
    "partials of a module": "WRAPS = {1: functools.partial(FSDP, use_orig_params=True), 2: functools.partial(FSDP)}\n",
}


@pytest.mark.parametrize("text", FUNCTIONS.values(), ids=FUNCTIONS)
def test_each_wrap_of_a_statement_has_a_function_of_its_own(text: str) -> None:
    _, results = analyse_texts({"train.py": f"{IMPORT}{WRAPPERS}\n\n{text}"})
    result = results["train.py"]
    assert result.count("def shard(model):") == result.count("def shard_2(model):") == 1
    last = result.rstrip().splitlines()[-1]
    assert len(re.findall(r"\bshard\b", last)) == len(re.findall(r"\bshard_2\b", last)) == 1


def test_models_that_one_statement_builds_are_migrated_together() -> None:
    text = f"{IMPORT}\n\ndef f(build, keep):\n    a, b = FSDP(build()), FSDP(build())\n    keep(a.state_dict)\n    return a, b\n"
    _, results = analyse_texts({"train.py": text})
    assert results["train.py"] == text
