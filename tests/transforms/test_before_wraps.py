"""What runs before anything is wrapped stays as it is; what may run later does not."""

from __future__ import annotations

import pytest
from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.text.source import Source

WRAP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
NET = "import torch\n\nclass Net(torch.nn.Module):\n    def read(self, path):\n        self.load_state_dict(torch.load(path))\n"


def texts(**files: str) -> dict[str, str]:
    """The new texts, the old one for files that do not change."""
    sources = {f"{name}.py": Source.decode(f"{name}.py", text.encode()) for name, text in files.items()}
    facts = [extract(source) for source in sources.values()]
    analysis = analyse(facts, sources.__getitem__, Options(target_torch=(2, 13)), paths=list(sources))
    assert not analysis.errors
    return {path: analysis.texts.get(path, source.text) for path, source in sources.items()}


def script(body: str, call: str = "main()") -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"{WRAP}import net\n\ndef main():\n{lines}\nif __name__ == '__main__':\n    {call}\n"


def helps(text: str) -> bool:
    return "load_state(" in text or "load_model_state(" in text


EARLY = "model = net.Net()\nmodel.read('x')\nmodel = FSDP(model)"
LATE = "model = net.Net()\nmodel = FSDP(model)\nmodel.module.read('x')"
LOOP = "for seed in range(2):\n    model = net.Net()\n    model.read('x')\n    model = FSDP(model)"

STALE = "model = net.Net()\nfor seed in range(2):\n    model.read('x')\n    model = FSDP(model)"
ONCE = "for seed in range(2):\n    if seed == 0:\n        model = net.Net()\n    model.read('x')\n    model = FSDP(model)"


@pytest.mark.parametrize(
    ("body", "call", "late"),
    [
        (EARLY, "main()", False),
        (LATE, "main()", True),
        (LOOP, "main()", False),
        (EARLY, "main(); main()", False),
        (STALE, "main()", True),
        (ONCE, "main()", True),
        (EARLY, "fire.Fire(main)", False),
    ],
)
def test_callers_say_when_a_method_runs(body: str, call: str, late: bool) -> None:
    text = ("import fire\n" if "fire" in call else "") + script(body, call)
    assert helps(texts(train=text, net=NET)["net.py"]) == late


@pytest.mark.parametrize(("between", "late"), [("else:\n    ", False), ("if len(state):\n    ", True)])
def test_a_wrap_in_another_branch_does_not_come_before(between: str, late: bool) -> None:
    read = "model.load_state_dict(state)\n    model = FSDP(model)"
    body = f"state = torch.load('x')\nmodel = net.Net()\nif main:\n    model = FSDP(model)\n{between}{read}"
    assert helps(texts(train=script(body), net=NET)["train.py"]) == late


def test_what_is_called_on_a_result_comes_after_its_making() -> None:
    trainer = (
        f"{WRAP}\nclass Trainer:\n    def __init__(self, model):\n        self.model = FSDP(model)\n"
        "    def run(self, state):\n        self.model.load_state_dict(state)\n"
    )
    run = "import net, trainer\n\nif __name__ == '__main__':\n    trainer.Trainer(net.Net()).run({})\n"
    assert helps(texts(train=run, trainer=trainer, net=NET)["trainer.py"])


SOLVER = (
    f"{WRAP}import misc\nfrom abc import ABC\n\nclass Solver(ABC):\n    def __init__(self):\n        model, _ = self.make()\n"
    "        misc.promote(model)\n        self.model = FSDP(model)\n"
)
PROMOTE = "def promote(model):\n    for p in model.parameters():\n        p.data = p.data.float()\n"
OWN = "import net\nfrom solver import Solver\n\nclass Own(Solver):\n    def make(self):\n        return net.Net(), 1\n\n"


@pytest.mark.parametrize(("made", "late"), [("Own()", False), ("{'own': Own}[input()]()", True)])
def test_a_base_is_made_where_classes_that_derive_from_it_are(made: str, late: bool) -> None:
    own = f"{OWN}if __name__ == '__main__':\n    {made}\n"
    assert ("assign_data" in texts(solver=SOLVER, own=own, net=NET, misc=PROMOTE)["misc.py"]) == late


def test_another_caller_may_come_later() -> None:
    other = "def again(model):\n    model.read('y')\n"
    text = script("model = net.Net()\nmodel.read('x')\nmodel = FSDP(model)\nagain(model.module)").replace(
        "import net\n", "import net\nfrom other import again\n"
    )
    assert helps(texts(train=text, other=other, net=NET)["net.py"])


def test_a_method_that_is_handed_on_runs_whenever_it_likes() -> None:
    text = script("model = net.Net()\nmodel.read('x')\nregister(model.read)\nmodel = FSDP(model)")
    assert helps(texts(train=text, net=NET)["net.py"])


def test_a_wrapper_in_a_table_may_be_called_at_any_time() -> None:
    table = f"{WRAP}\nWRAPPERS = {{'fsdp': FSDP}}\n"
    text = script("model = net.Net()\ntable.WRAPPERS[input()](model)\nmodel.read('x')")
    text = text.replace("import net\n", "import net, table\n")
    assert helps(texts(train=text, table=table, net=NET)["net.py"])


def test_a_program_that_never_wraps_shares_a_file() -> None:
    sample = "import net\n\nif __name__ == '__main__':\n    model = net.Net()\n    model.read('x')\n"
    assert not helps(texts(train=script(EARLY), sample=sample, net=NET)["net.py"])


def test_objects_of_other_classes_keep_their_own_state_dict() -> None:
    scaler = "class Scaler:\n    n = 1\n    def state_dict(self):\n        return {'n': self.n}\n"
    text = script("scaler = Scaler()\nmodel = FSDP(net.Net())\nsave(scaler.state_dict(), model.state_dict())").replace(
        "import net\n", "import net\nfrom scaler import Scaler\n"
    )
    new = texts(train=text, scaler=scaler, net=NET)["train.py"]
    assert "save(scaler.state_dict(), model_state(model))" in new


def test_a_file_that_a_program_names_in_quotes_is_part_of_it() -> None:
    averages = "import copy\n\nclass Average:\n    def __init__(self, net):\n        self.net = copy.deepcopy(net).eval()\n" + (
        "    def state(self):\n        return self.net.state_dict()\n"
    )
    body = "model = FSDP(net.Net())\nkinds = dict(name='averages.Average')\nreturn make(model, **kinds)"
    report = "import averages\n\nif __name__ == '__main__':\n    print(averages.__doc__)\n"
    maker = (
        "import importlib\n\ndef make(model, name):\n    module, _, kind = name.rpartition('.')\n"
        "    return getattr(importlib.import_module(module), kind)(model)\n\n"
    )
    found = texts(train=maker + script(body), averages=averages, report=report, net=NET)
    assert "plain_copy(net).eval()" in found["averages.py"]


PLUGIN = (
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\nclass Job:\n    def __init__(self, net):\n"
    "        self.net = net\n\n    def __call__(self):\n        run(self.net)\n\n\ndef run(net):\n    net.read('x')\n"
    "    model = FSDP(net)\n    return model\n"
)


@pytest.mark.parametrize(
    ("start", "late"),
    [
        ("submit(job.Job(net.Net()))", False),
        ("model = net.Net()\n    job.run(model)\n    job.run(model)", True),
        ("submit(job.run)\n    job.run(net.Net())", True),
    ],
)
def test_code_out_of_sight_starts_what_it_is_handed(start: str, late: bool) -> None:
    """What it calls runs from the place on where it was handed on, or where its object was made."""
    text = f"import job, net\n\n\nif __name__ == '__main__':\n    {start}\n"
    assert helps(texts(train=text, job=PLUGIN, net=NET)["net.py"]) == late


def test_a_script_that_never_wraps_stays_as_it_is() -> None:
    """Though it reads an attribute of the same name as the property by which another script comes to the wrapped model."""
    runner = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\nclass Runner:\n    def __init__(self, net):\n"
        "        self.net = net\n\n    @property\n    def model(self):\n        return FSDP(self.net)\n"
    )
    train = "import net, runner\n\n\nif __name__ == '__main__':\n    run(runner.Runner(net.Net()))\n"
    score = "import net\n\n\nif __name__ == '__main__':\n    made = net.Net()\n    print(settings.model)\n    made.read('x')\n"
    found = texts(train=train, runner=runner, score=score, net=NET)
    assert found["score.py"] == score and "fully_shard" in found["runner.py"] + found["train.py"]


@pytest.mark.parametrize(("imported", "late"), [
    ("import other", False), ("from train import run", True),
    ("from importlib import import_module\nimport_module(input())", True),
])  # fmt: skip
def test_a_method_of_something_unknown_is_no_function_of_a_script_that_nobody_imports(imported: str, late: bool) -> None:
    probe = f"{imported}\n\nclass Probe:\n    def check(self):\n        self.predictor.run()\n"
    body = "model = net.Net()\nprobe.Probe().check()\nmodel.read('x')\nKEPT.append(FSDP(model))"
    train = "import probe\n\nKEPT = []\n\n\ndef run():\n    main()\n\n" + script(body)
    assert helps(texts(train=train, net=NET, probe=probe)["net.py"]) == late


@pytest.mark.parametrize(("option", "late"), [("args.speed", False), ("speed", True)])
def test_an_option_with_the_name_of_a_function_hands_none_on(option: str, late: bool) -> None:
    """Nor does a variable of a method's name."""
    speed = "def speed(model):\n    model.read('x')\n"
    body = f"model = net.Net()\nread = 1\nif {option}:\n    print(read)\n    speed(model)\nmodel = FSDP(model)"
    found = texts(train="from speeds import speed\n" + script(body), net=NET, speeds=speed)
    assert helps(found["speeds.py"] + found["net.py"]) == late


@pytest.mark.parametrize(("name", "late"), [("test_train", False), ("train_test", False), ("more", True)])
def test_each_test_of_a_repository_begins_anew(name: str, late: bool) -> None:
    """What another test wraps is not what this one calls; any other function may be called after a wrap."""
    train = WRAP + (
        "import torch\n\n\ndef reset(model):\n    model.load_state_dict(torch.load('x'))\n\n\n"
        "def main(options):\n    model = options.make()\n    reset(model)\n    return FSDP(model)\n\n\n"
        "if __name__ == '__main__':\n    main(None)\n"
    )
    test = "\n\n@pytest.mark.parametrize('seed', [1, 2])\ndef test_{}(seed):\n    return train.main(seed)\n"
    check = "import pytest\nimport train\n" + test.format("one") + test.format("two")
    assert helps(texts(**{"train": train, name: check})["train.py"]) is late


EXPORT = """import torch
import net


def timed(run):
    {stored}
    def inner(*args):
        try:
            return run(*args)
        finally:
            print("done")

    {given}


@timed
def export(model, path):
    model.load_state_dict(torch.load(path))
    return model


KEPT = []

if __name__ == '__main__':
    export(net.build(None), 'x')
"""
IMPORTS = "import export\nimport net\n\nmodel = FSDP(net.build({}))\nmodel.module.read('x')\n"
BUILD = "\nMADE = {}\n\ndef build(options):\n    MADE['net'] = Net(**options)\n    return MADE['net']\n"


@pytest.mark.parametrize(("stored", "given", "late"), [
    ("pass", "return inner", False),
    ("pass", "KEPT.append(inner)\n    return inner", True),
    ("KEPT.append(run)", "return inner", True),
])  # fmt: skip
def test_decorated_functions_are_called_by_their_names(stored: str, given: str, late: bool) -> None:
    """A script that a training program imports wraps nothing when it is run."""
    train = WRAP + IMPORTS + ("for run in export.KEPT:\n    run(model, 'x')\n" if late else "")
    assert helps(texts(train=train, export=EXPORT.format(stored=stored, given=given), net=NET + BUILD)["export.py"]) == late
