"""Guards of ranks: which are seen, and what is held whole in front of them."""

from __future__ import annotations

import textwrap

import pytest
from guarded_programs import HEAD, contexts
from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.text.source import Source


def test_guards_further_out_hold_what_inner_ones_need() -> None:
    program = """
        def rank_zero_only(function):
            def run(*args):
                if is_main():
                    return function(*args)
            return run

        class Trainer:
            def __init__(self, net, options):
                self.model = DDP(net, **options)

            @rank_zero_only
            def evaluate(self):
                return 1.0

            @rank_zero_only
            def save(self):
                torch.save(self.model.state_dict(), "x.pt")

            def train(self):
                score = self.evaluate()
                if score is not None:
                    self.save()

        Trainer(torch.nn.Linear(2, 2), {}).train()
    """
    assert contexts(program) == ["with whole_on_each_rank(self.model):"]


def test_flags_by_conditional_expressions_and_loops_over_containers() -> None:
    program = """
        class Checkpointer:
            def __init__(self, model, to_disk=None, **others):
                self.model, self.others = model, others
                self.to_disk = is_main() if to_disk is None else to_disk

            def save(self):
                if not self.to_disk:
                    return
                data = {"model": unwrap(self.model).state_dict()}
                for name, other in self.others.items():
                    data[name] = other.state_dict()
                torch.save(data, "x.pt")

        def main(net, options):
            model = DDP(net, **options)
            Checkpointer(model, optimizer=torch.optim.SGD(model.parameters(), 0.1)).save()

        main(torch.nn.Linear(2, 2), {})
    """
    assert contexts(program) == ["with whole_on_each_rank(self.model, self.others):"]


def test_what_cannot_be_named_at_the_guard_is_among_everything() -> None:
    program = """
        MODELS = {{}}

        def export(name):
            torch.save(find(name).state_dict(), "x.pt")

        def find(name):
            return MODELS[name]

        def main(net, options):
            MODELS["a"] = DDP({net}, **options)
            if dist.get_rank() == 0:
                export("a")

        main(torch.nn.Linear(2, 2), {{}})
    """
    assert contexts(program.format(net="torch.nn.Sequential(net)")) == ["with everything_whole_on_each_rank():"]
    assert contexts(program.format(net="net")) == ["with whole_on_each_rank(net):"]


@pytest.mark.parametrize("call", ["validate(load('x.pt'))", "m = load('x.pt')\n                validate(m)"])
def test_what_one_rank_made_is_its_own(call: str) -> None:
    program = f"""
        class Net(torch.nn.Linear):
            pass

        def load(path):
            model = Net(2, 2)
            model.load_state_dict(torch.load(path))
            return model

        def validate(model):
            return model(torch.ones(2))

        def main(options):
            model = DDP(Net(2, 2), **options)
            validate(model)
            if dist.get_rank() == 0:
                {call}

        main({{}})
    """
    assert contexts(program) == []


def test_local_names_are_spelled_out() -> None:
    program = """
        class Trainer:
            def __init__(self, net, options):
                self.model = DDP(net, **options)

            def save(self):
                if is_main():
                    model = self.model
                    raw = model.module if hasattr(model, "module") else model
                    for name in ("a", "b"):
                        torch.save(raw.state_dict(), name)

        Trainer(torch.nn.Linear(2, 2), {}).save()
    """
    assert contexts(program) == ["with whole_on_each_rank(self.model):"]


def test_objects_that_one_rank_alone_has() -> None:
    program = """
        class Saver:
            def __init__(self, model):
                self.model = model

            def after_step(self):
                torch.save(self.model.state_dict(), "x.pt")

        class Printer:
            def after_step(self):
                print("step")

        class Trainer:
            def __init__(self, net, options):
                self.model = DDP(net, **options)
                self.hooks = [Printer()]
                if is_main():
                    self.hooks.append(Saver(self.model))

            def train(self):
                for step in range(3):
                    for hook in self.hooks:
                        hook.after_step()

        Trainer(torch.nn.Linear(2, 2), {}).train()
    """
    assert contexts(program) == ["with everything_whole_on_each_rank():"]


def test_what_other_ranks_have_none_of_is_not_named() -> None:
    program = """
        class Saver:
            def __init__(self, model):
                self.model = model

            def save(self):
                torch.save(self.model.state_dict(), "x.pt")

        def train(model, batches, saver=None, every=3):
            for i, batch in enumerate(batches):
                model(batch).sum().backward()
                if saver is not None and i % every == 0:
                    saver.save()

        def main(net, options):
            model, saver = DDP(net, **options), None
            if is_main():
                saver = Saver(model)
            train(model, [], saver=saver)

        main(torch.nn.Linear(2, 2), {})
    """
    assert contexts(program) == ["with whole_on_each_rank(model):"]


@pytest.mark.parametrize(
    "data, held",
    [
        ('data = {"net": self.model.module, "step": 3}', "self.model"),
        ("data = [dict(net=self.model)]", "self.model"),
        ("self.all = data = {'net': self.model}", "self.model"),
    ],
)
def test_models_that_are_saved_as_objects_are_held_whole(data: str, held: str) -> None:
    program = f"""
        import pickle

        class Trainer:
            def __init__(self, net):
                self.model = DDP(net)

            def save(self, file):
                {data}
                pickle.dump(data, file)

            def train(self, file):
                if is_main():
                    self.save(file)

        Trainer(torch.nn.Linear(2, 2)).train("x.pkl")
    """
    assert contexts(program) == [f"with whole_on_each_rank({held}):"]


def test_models_that_are_handed_to_what_saves_them_are_held_whole() -> None:
    program = """
        def save(data, path):
            torch.save(data, path)

        def main(net):
            model = DDP(net)
            if is_main():
                save({"net": model, "step": 3}, "x.pt")

        main(torch.nn.Linear(2, 2))
    """
    assert contexts(program) == ["with whole_on_each_rank(model):"]


def test_what_only_some_of_the_possible_classes_have_is_found_in_what_is_held() -> None:
    program = """
        class Lookahead(torch.optim.Optimizer):
            def __init__(self, inner):
                self.inner = inner
                self.param_groups, self.defaults, self.state = inner.param_groups, inner.defaults, {}

            def state_dict(self):
                return {"fast": self.inner.state_dict()}

        def main(args, net):
            model = DDP(net)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            if args.lookahead:
                optimizer = Lookahead(optimizer)
            if is_main():
                print(model)
                torch.save({"optimizer": optimizer.state_dict(), "step": 1, "model": model(torch.ones(2))}, "x.pt")

        main(torch.nn.Linear(2, 2), {})
    """
    assert contexts(program) == ["with whole_on_each_rank(optimizer, model):"]


def test_all_ways_from_a_guard_to_the_same_save_count() -> None:
    program = """
        def save(model):
            torch.save(model.state_dict(), "x.pt")

        def main(net, args, best):
            model = DDP(net)
            if is_main():
                if args.loss > best:
                    if args.all:
                        save(model)
                else:
                    best = args.loss
                    save(model)
    """
    assert contexts(program) == ["with whole_on_each_rank(model):"]


def test_training_behind_a_guard_is_left_and_told_of() -> None:
    program = """
        def main(net, optimizer, x):
            model = DDP(net)

            def closure():
                loss = model(x).sum()
                loss.backward()
                return loss

            if is_main():
                optimizer.step(closure)
            else:
                closure()
    """
    assert contexts(program) == []
    source = Source.decode("train.py", (HEAD + textwrap.dedent(program)).encode())
    analysis = analyse([extract(source)], lambda _: source, Options(target_torch=(2, 13)), paths=["train.py"])
    assert {finding.level.value for finding in analysis.findings if finding.rule == "FS414"} == {"manual"}


def test_a_function_that_is_asked_for_an_attribute_is_not_called() -> None:
    program = """
        def save(model, optimizer, x):
            if not is_main():
                return
            if hasattr(save, "best"):
                print(save.best)
            torch.save([model.module.predict(x), len(optimizer.param_groups)], "x.pt")

        def main(net, x):
            model = DDP(net)
            model(x).sum().backward()
            save(model, torch.optim.SGD(model.parameters(), 0.1), x)
    """
    assert contexts(program) == ["with whole_on_each_rank(model):"]


def test_a_registry_may_hand_out_what_it_decorates() -> None:
    program = """
        TABLE = {}

        def register(given=None, **options):
            def add(function):
                TABLE[options.get("key")] = function
                return function

            return add(given) if callable(given) else add

        @register
        def forward(model, batch):
            return model(batch)

        @register(key="other")
        def twice(model, batch):
            torch.save(model.state_dict(), "x.pt")
            return model(model(batch))

        twice(DDP(torch.nn.Linear(2, 2)), torch.ones(2))
    """
    assert contexts(program) == []


def test_what_a_library_keeps_is_whole_where_its_methods_run() -> None:
    program = """
        from timm.utils import CheckpointSaver

        def main(options):
            model = DDP(options.net)
            saver = None
            if dist.get_rank() == 0:
                saver = CheckpointSaver(model, options.optimizer)
            if saver is not None:
                saver.save_checkpoint(0)
    """
    assert contexts(program) == ["with everything_whole_on_each_rank():"]


def test_a_rank_in_an_attribute_that_another_file_sets() -> None:
    files = {
        "main.py": HEAD + "import part\n\n\ndef main(net, args):\n    args.saves = dist.get_rank() == 0\n"
        "    part.run(DDP(net), args)\n\n\nmain(torch.nn.Linear(2, 2), object())\n",
        "part.py": "import torch\n\n\ndef run(model, args):\n    if args.saves:\n"
        '        torch.save(model.module.state_dict(), "x.pt")\n',
    }  # fmt: skip
    sources = {path: Source.decode(path, text.encode()) for path, text in files.items()}
    facts = [extract(source) for source in sources.values()]
    text = analyse(facts, sources.__getitem__, Options(target_torch=(2, 13)), paths=list(files)).texts["part.py"]
    assert text.index("model.state_dict()") < text.index("if args.saves"), "all ranks gather it"


@pytest.mark.parametrize(("ways", "held"), [(20, "whole_on_each_rank(self.model)"), (60, "everything_whole_on_each_rank()")])
def test_a_model_that_comes_by_one_of_many_ways_is_held(ways: int, held: str) -> None:
    """Behind a guard, one function calls another with plain models by short ways, and with the sharded one by a longer way."""
    steps = "\n".join(f"def step_{number}(model):\n    save(model)\n" for number in range(ways))
    calls = "\n".join(f"        step_{number}(self.other)" for number in range(ways))
    program = f"""
class Net(torch.nn.Module):
    pass

def write(model):
    torch.save(model.state_dict(), "x.pt")

def save(model):
    write(model)

{steps}
def last(model):
    step_0(model)

class Trainer:
    def __init__(self, net):
        self.model = DDP(net)
        self.other = Net()

    def run(self):
{calls}
        last(self.model)

    def train(self):
        if is_main():
            self.run()

Trainer(torch.nn.Linear(2, 2)).train()
"""
    assert contexts(program) == [f"with {held}:"]


def test_a_decorated_function_names_what_it_was_handed() -> None:
    """Also where it binds the name again, and other functions of the file bind it behind tests; defaults stay."""
    program = """
        def master_only(function):
            def run(*args, **kwargs):
                if is_main():
                    return function(*args, **kwargs)
            return run

        class Base:
            def to_device(self, net, options):
                if is_main():
                    net = net.train()
                return DDP(net, **options)

            @master_only
            def save(self, label, key="params", net=None):
                net = net if isinstance(net, list) else [net]
                key = key if isinstance(key, list) else [key]
                torch.save({one: each.state_dict() for each, one in zip(net, key)}, label)

            def run(self, net, options):
                self.net = self.to_device(net, options)
                self.save("a", net=self.net)
                self.save("b", ["x", "y"], [self.net, self.net])

        Base().run(torch.nn.Linear(2, 2), {})
    """
    assert contexts(program) == []
    text = HEAD + textwrap.dedent(program)
    source = Source.decode("train.py", text.encode())
    analysis = analyse([extract(source)], lambda _: source, Options(target_torch=(2, 13)), paths=["train.py"])
    decorator = "@holding_whole(lambda self, label, key='params', net=None, *_, **__: (net,))"
    assert decorator in analysis.texts["train.py"]


@pytest.mark.parametrize("call", ["retried(lambda: {})", "here(lambda: {})", "kept = lambda: {}"])
def test_what_a_lambda_behind_a_guard_does_is_behind_it(call: str) -> None:
    program = f"""
        from tools import retried

        def here(save):
            save()

        def main(net):
            model = DDP(net)
            if dist.get_rank() == 0:
                {call.format('torch.save(model.state_dict(), "x.pt")')}
    """
    assert contexts(program) == ["with whole_on_each_rank(model):"]


def test_functions_inside_of_training_ones_do_not_train() -> None:
    program = """
        def main(net, batches):
            model = DDP(net)

            def save():
                torch.save(model.state_dict(), "x.pt")

            for x in batches:
                model(x).sum().backward()
                if dist.get_rank() == 0:
                    save()
    """
    assert contexts(program) == ["with whole_on_each_rank(model):"]
