"""Models that have another name behind a rank guard than in front of it."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest
from migrated_texts import HEAD, texts
from test_examples import migrated
from to_fsdp2.transforms.queries.local_names import spelled_out

TRAINER = """
    import os
    import torch
    from torch.nn.parallel import DistributedDataParallel as DDP


    class Trainer:
        def __init__(self, net, optimizer, parts):
            self.model = DDP(net)
            self.optimizer = optimizer
            self.parts = parts

        def save(self):
            {names}
            torch.save([raw.state_dict(), self.optimizer.state_dict()], "last.pt")

        def train(self):
            if int(os.environ["RANK"]) == 0:
                self.save()
"""


@pytest.mark.parametrize(
    "names",
    [
        "raw = self.model.module if hasattr(self.model, 'module') else self.model",
        "model = self.model; raw = model.module if hasattr(model, 'module') else model",
        "raw = getattr(self.model, 'module', self.model)",
    ],
)
def test_a_local_name_is_spelled_out_at_the_guard(names: str) -> None:
    text = migrated(dedent(TRAINER).format(names=names)).texts["train.py"]
    assert "with whole_on_each_rank(self.model, self.optimizer):" in text


def test_where_there_is_no_name_at_the_guard_everything_is_held_whole() -> None:
    text = migrated(dedent(TRAINER).format(names="raw = [self.model][0]")).texts["train.py"]
    assert "with everything_whole_on_each_rank():" in text


def test_names_that_are_assigned_twice_stay() -> None:
    scope = ast.parse("a = self.x\nif q:\n    a = self.y\nb = a\nc = f(a, a)")
    spelled = {name: ast.unparse(spelled_out(scope, ast.parse(name, mode="eval").body)) for name in ("a", "b.w", "c", "d")}
    assert spelled == {"a": "a", "b.w": "a.w", "c": "c", "d": "d"}


def test_what_a_model_is_moved_to_is_no_name_of_it() -> None:
    """Nor does a name mean something else because it is bound anew further down."""
    train = dedent("""
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel as DDP

        class Net(torch.nn.Module):
            def __init__(self, where):
                super().__init__()
                self.layer = torch.nn.Linear(2, 2)
            def forward(self, x):
                return self.layer(x)

        def reload(model):
            model.load_state_dict(torch.load("best.pt"))
            return model

        if __name__ == "__main__":
            device = torch.device("cuda")
            model = Net(device).to(device)
            if dist.is_initialized():
                model = DDP(model)
            if dist.get_rank() == 0:
                print(model(torch.ones(1, 2)))
            model(torch.ones(1, 2)).sum().backward()
            if dist.get_rank() == 0:
                model = reload(model)
                print(model(torch.ones(1, 2)))
    """)
    first = "    with whole_on_each_rank(model):\n        if dist.get_rank() == 0:\n            print(model("
    assert first in migrated(train).texts["train.py"]
    spelled = spelled_out(ast.parse("m = net.to(device)\nn = unwrap(m).eval()"), ast.parse("n", mode="eval").body)
    assert ast.unparse(spelled) == "net"


def test_models_that_are_unwrapped_where_they_are_saved() -> None:
    """A choice between a model and its wrapper's module has the model's name."""
    train = dedent("""
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel as DDP


        def train(net, other, world, path):
            net, other = DDP(net), DDP(other)
            if dist.get_rank() == 0:
                print(net(1))
                state = {"net": (net.module if world > 1 else net).state_dict()}
                state["other"] = (other.module if world > 1 else other).state_dict()
                torch.save(state, path)
    """)
    text = migrated(train).texts["train.py"]
    assert "    with whole_on_each_rank(net, other):\n        if dist.get_rank() == 0:\n" in text


def test_an_object_that_is_called_is_the_self_of_what_runs() -> None:
    train = dedent("""
        import torch, torch.nn as nn
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel as DDP

        class Inner:
            def __init__(self):
                self.net = DDP(nn.Linear(2, 2))
            def __call__(self, x):
                return self.net(x)

        class Outer:
            def __init__(self):
                self.inner = Inner()
            def forward(self, x):
                return self.inner(x)

        def main():
            outer = Outer()
            outer.inner(torch.ones(1, 2)).sum().backward()
            if dist.get_rank() == 0:
                print(outer.forward(torch.ones(1, 2)))
        main()
    """)
    assert "    with whole_on_each_rank(outer.inner.net):\n" in migrated(train).texts["train.py"]


SAVED_BY_NAME = """
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP

    def save(path, model=None, epoch=0, **kwargs):
        data = {"model": model.state_dict(), "epoch": epoch}
        for key, value in kwargs.items():
            if hasattr(value, "state_dict"):
                inner = value.module if isinstance(value, DDP) else value
                data[key] = inner.state_dict()
        torch.save(data, path)

    def main(step):
        model, critic = DDP(nn.Linear(4, 4)), DDP(nn.Linear(4, 4))
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler(enabled=False)
        if dist.get_rank() == 0:
            save("a.pt", model, step, GIVEN)

    main(1)
"""


@pytest.mark.parametrize(
    "given, held",
    [
        ("scaler=scaler", "whole_on_each_rank(model)"),
        ("critic=critic, scaler=scaler", "whole_on_each_rank(model, critic)"),
        ("critic=critic, optimizer=optimizer", "whole_on_each_rank(model, critic, optimizer)"),
        ("**{'critic': critic}", "whole_on_each_rank(model, critic)"),
    ],
)
def test_what_is_handed_in_by_any_keyword_is_named_at_the_guard(given: str, held: str) -> None:
    text = migrated(dedent(SAVED_BY_NAME.replace("GIVEN", given))).texts["train.py"]
    assert f"    with {held}:\n        if dist.get_rank() == 0:\n" in text


SAVER = """
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP
    {imports}

    def train(net, batches, optimizer, saver=None):
        for x in batches:
            net(x).sum().backward()
            optimizer.step()
        if saver is not None:
            saver.save("last.pt")

    def main(batches, unseen=None):
        model = DDP(nn.Sequential(nn.Linear(4, 4)))
        optimizer = torch.optim.AdamW(model.parameters())
        saver = None
        if dist.get_rank() == 0:
            saver = Saver({given})
        train(model, batches, optimizer, saver)

    main([], *torch.load('options.pt'))
"""
OWN_SAVER = """
    class Saver:
        def __init__(self, model, optimizer):
            self.model, self.optimizer = model, optimizer

        def save(self, path):
            torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, path)
"""


@pytest.mark.parametrize(
    "imports, given, held",
    [
        (OWN_SAVER, "model, optimizer", "whole_on_each_rank(net, optimizer)"),
        (OWN_SAVER, "model, None", "whole_on_each_rank(net)"),
        (OWN_SAVER, "model.module[0], None", "whole_on_each_rank(net)"),
        (OWN_SAVER, "model, torch.optim.SGD(model.parameters())", "everything_whole_on_each_rank()"),
        ("from timm.utils import Saver", "model=model, optimizer=optimizer", "whole_on_each_rank(net, optimizer)"),
        ("from timm.utils import Saver", "model=model, optimizer=unseen", "everything_whole_on_each_rank()"),
    ],
)
def test_what_some_ranks_saver_keeps_is_named_where_all_have_it(imports: str, given: str, held: str) -> None:
    text = migrated(dedent(SAVER).format(imports=dedent(imports), given=given)).texts["train.py"]
    assert f"    with {held}:\n        if saver is not None:\n" in text


IN_COPIES = """
    import threading
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP

    class Net(nn.Linear):
        def scores(self, x):
            return x @ self.weight

    def evaluate(net, x):
        print(net.scores(x).shape)

    def in_copies(function, net, inputs):
        copies = nn.parallel.replicate(net, [0, 1])

        def work(copy, x):
            function(copy, x)

        if len(copies) > 1:
            threads = [threading.Thread(target=work, args=one) for one in zip(copies, inputs)]
        else:
            work(copies[0], inputs[0])

    def main(x):
        model = DDP(Net(4, 4))
        OTHER
        if dist.get_rank() == 0:
            evaluate(model, x)
            in_copies(evaluate, model, [x])

    main(torch.ones(1, 4))
"""


@pytest.mark.parametrize("other, held", [("", "whole_on_each_rank(model)"),
                                         ("evaluate(model.module, x)", "whole_on_each_rank(model)")])  # fmt: skip
def test_what_is_reached_by_other_ways_too_is_named_once(other: str, held: str) -> None:
    text = migrated(dedent(IN_COPIES.replace("OTHER", other))).texts["train.py"]
    assert f"    with {held}:\n        if dist.get_rank() == 0:\n" in text


CLOSURE = """
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP


    def in_chunks(fn, size):
        def run(x):
            return [fn(part) for part in x.split(size)]

        return run


    def render(views, net):
        with torch.no_grad():
            for i in range(dist.get_rank(), len(views), dist.get_world_size()):
                print(in_chunks(net, 2)(views[i]))


    render(load(), DDP(torch.nn.Linear(4, 4)))
"""


def test_the_name_that_an_inner_function_has_from_around_it_is_none_of_its_caller() -> None:
    text = migrated(dedent(CLOSURE)).texts["train.py"]
    assert "with whole_on_each_rank(net):" in text


def test_a_name_of_the_function_that_both_stand_in_is_good_at_the_guard() -> None:
    code = "import os\nimport torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n\n\ndef main(net):\n"
    code += "    model = DDP(net)\n\n    def save():\n        torch.save(model.state_dict(), 'last.pt')\n\n"
    code += "    if int(os.environ['RANK']) == 0:\n        save()\n\n\nmain(torch.nn.Linear(2, 2))\n"
    assert "    with whole_on_each_rank(model):\n" in migrated(code).texts["train.py"]


HANDED_ON = """
    import os
    import torch
    from torch.nn.parallel import DistributedDataParallel as DDP


    def improved(x, judge):
        return x + judge(x).sum()


    def images(x, judge, improve):
        return improved(x, judge) if improve else x


    class Worker:
        def __init__(self, judge):
            self.judge = judge

        def show(self):
            print(images(torch.ones(1, 2), judge=self.judge, improve=True))


    def main(net):
        worker = Worker(DDP(net))
        print(images(torch.ones(1, 2), "none", False))
        if int(os.environ["RANK"]) == 0:
            worker.show()


    main(torch.nn.Linear(2, 2))
"""


def test_what_is_handed_on_this_way_counts_and_not_what_others_hand_in() -> None:
    text = migrated(dedent(HANDED_ON)).texts["train.py"]
    assert "    with whole_on_each_rank(worker.judge):\n        if int(os.environ" in text


def test_the_items_of_a_loop_are_held_with_the_list() -> None:
    train = dedent("""
        import torch
        import torch.distributed as dist
        from steppers import Stepper
        from torch.nn.parallel import DistributedDataParallel as DDP


        def save(model, steppers):
            if dist.get_rank() == 0:
                parts = [one.state_dict() for one in steppers]
                torch.save([model.state_dict(), parts], "last.pt")


        model = DDP(torch.nn.Linear(2, 2))
        save(model, [Stepper(model), torch.optim.SGD(model.parameters())])
    """)
    text = migrated(train).texts["train.py"]
    assert "with whole_on_each_rank(steppers, model):" in text


def test_a_name_that_may_stand_for_several_models_is_one_of_them_at_a_time() -> None:
    """What a proxy holds is the model here; the loss, which another proxy holds, has no name at the guard."""
    program = HEAD + (
        "import torch.distributed as dist\n\n\nclass Proxy:\n    def __init__(self, module):\n        self.module = module\n\n"
        "    def state_dict(self):\n        return self.module.module.state_dict()\n\n\n"
        "class Trainer:\n    def __init__(self):\n        self.net, self.loss = nn.Linear(4, 4), nn.Linear(4, 1)\n"
        "        self.model, self.criterion = Proxy(DDP(self.net)), Proxy(DDP(self.loss))\n\n"
        "    def get_loss(self):\n        return self.loss\n\n"
        "    def save(self):\n        save_state(self.model.state_dict(), self.get_loss())\n\n\n"
        "def save_state(state, loss):\n    torch.save({'model': state, 'loss': loss.state_dict()}, 'state.pt')\n\n\n"
        "def main():\n    trainer = Trainer()\n"
        "    trainer.criterion.module(trainer.model.module(torch.ones(2, 4))).sum().backward()\n"
        "    if dist.get_rank() == 0:\n        print('saving')\n        trainer.save()\n\n\nmain()\n"
    )
    assert "everything_whole_on_each_rank()" in texts({"train": program})["train"]


def test_a_model_of_one_of_two_classes_that_is_wrapped_once_is_one() -> None:
    """What is evaluated has no name at the guard: it is what is saved there."""
    program = HEAD + (
        "import torch.distributed as dist\n\n\nclass Small(nn.Linear):\n    pass\n\n\nclass Large(nn.Linear):\n    pass\n\n\n"
        "def evaluate(model):\n    return model(torch.ones(2, 4))\n\n\n"
        "class Trainer:\n    def __init__(self, small):\n        model = Small(4, 4) if small else Large(4, 4)\n"
        "        self.model = DDP(model)\n\n    def pick(self):\n        return self.model\n\n"
        "    def finish(self):\n        self.model(torch.ones(2, 4)).sum().backward()\n"
        "        if dist.get_rank() == 0:\n            torch.save(self.model.state_dict(), 'state.pt')\n"
        "            evaluate(self.pick())\n\n\n"
        "def main(small):\n    Trainer(small).finish()\n\n\nmain(True)\n"
    )
    assert "with whole_on_each_rank(self.model):" in texts({"train": program})["train"]


SOLVERS = (
    HEAD
    + """import torch.distributed as dist


class Solver(nn.Module):
    def sample(self, x):
        raise NotImplementedError


class Euler(Solver):
    def __init__(self, model):
        super().__init__()
        {euler}

    def sample(self, x):
        return self.model(x)


class Field(Solver):
    def __init__(self, field):
        super().__init__()
        self.field = field

    def sample(self, x):
        return x + self.field(x)


def run(net, x, is_discrete):
    model = DDP(net)
    solver = Euler(model) if is_discrete else Field(model)
    if dist.get_rank() == 0:
        solver.sample(x)
"""
)


@pytest.mark.parametrize(
    ("euler", "held"),
    [("self.model = model", "solver"), ("setattr(self, 'model', model); self.model = model", "solver.model, solver.field")],
)
def test_an_attribute_that_one_of_two_classes_lacks_is_not_read_at_the_guard(euler: str, held: str) -> None:
    assert f"with whole_on_each_rank({held}):" in texts({"train": SOLVERS.format(euler=euler)})["train"]


BEST = (
    HEAD
    + """import torch.distributed as dist


def save(model, optimizer, path):
    raw = model.module if hasattr(model, "module") else model
    raw.save_pretrained(path)
    torch.save(optimizer.state_dict(), path)


def run(net, batches, evaluate):
    model = DDP(net)
    optimizer = torch.optim.Adam(model.parameters())
    best = 1e9
    for x in batches:
        loss = evaluate(model, x)
        if loss < best:
            best = loss
            if dist.get_rank() == 0:
                save(model, optimizer, "best")
"""
)


def test_what_is_held_further_out_is_not_held_again() -> None:
    text = texts({"train": BEST})["train"]
    assert text.count("with whole_on_each_rank(model, optimizer, needed=true_on_any_rank(loss < best)):") == 1
    assert text.count("whole_on_each_rank(") == 1
