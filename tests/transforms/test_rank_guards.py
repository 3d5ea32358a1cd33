"""Guards of ranks: which are seen, and what is held whole in front of them."""

from __future__ import annotations

import textwrap

import pytest
from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.text.source import Source

HEAD = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def is_main():
    return dist.get_rank() == 0


def unwrap(model):
    return model.module if hasattr(model, "module") else model


def get_dist_info():
    rank, world_size = 0, 1
    if dist.is_initialized():
        rank, world_size = dist.get_rank(), dist.get_world_size()
    return rank, world_size


"""
"""What all programs begin with."""


def contexts(program: str) -> list[str]:
    """The lines of the migrated program that hold something whole."""
    text = HEAD + textwrap.dedent(program)
    source = Source.decode("train.py", text.encode())
    analysis = analyse([extract(source)], lambda _: source, Options(target_torch=(2, 13)), paths=["train.py"])
    assert not analysis.errors
    lines = (line.strip() for line in analysis.texts["train.py"].splitlines())
    return [line for line in lines if "whole_on_each_rank(" in line and line.startswith(("with", "@"))]


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
        MODELS = {}

        def export(name):
            torch.save(find(name).state_dict(), "x.pt")

        def find(name):
            return MODELS[name]

        def main(net, options):
            MODELS["a"] = DDP(net, **options)
            if dist.get_rank() == 0:
                export("a")

        main(torch.nn.Linear(2, 2), {})
    """
    assert contexts(program) == ["with everything_whole_on_each_rank():"]


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


SAVES = """
        class Averages:
            def __init__(self, net):
                self.model = DDP(net)

        def save(args, model, optimizer, averages, scores, early, own):
            best = 1.0
            score = evaluate(model)
            if is_main():
                {body}

        def evaluate(model):
            return float(model(torch.ones(2)).sum())

        def main(args, path):
            model = DDP(torch.nn.Linear(2, 2))
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            averages = [Averages(torch.nn.Linear(2, 2)), None][args.plain]
            save(args, model, optimizer, averages, [], evaluate(model), args.x if is_main() else None)
"""


@pytest.mark.parametrize(
    "body, needed",
    [
        (["if args.last:", "    done = keep(model(1))"], "args.last"),
        (["x = None if args.fsdp else model(1)"], "not args.fsdp"),
        (["if not args.plain:", "    keep(model(1))", "if args.last:", "    keep(model(2))"], "not args.plain or args.last"),
        (["if args.a:", "    keep(model(1))", "    if args.b:", "        keep(model(2))"], "args.a"),
        (["if args.a and args.b:", "    keep(model(1))", "elif args.c:", "    keep(model(2))"],
         "(args.a and args.b) or (not (args.a and args.b) and args.c)"),
        (["if args.step == len(args.data) - 1:", "    keep(model(1))"], "args.step == len(args.data) - 1"),
        (["if args.step == steps(args) - 1:", "    keep(model(1))"], None),
        (["keep(model(1))", "if args.last:", "    keep(model(1))"], None),
        (["flag = args.last", "if flag:", "    keep(model(1))"], None),
        (["if isinstance(args.x, dict):", "    if args.x.flag:", "        keep(model(1))"], None),
        (["if score > best:", "    keep(model(1))"], "true_on_any_rank(score > best)"),
        (["if early > best:", "    keep(model(1))"], "true_on_any_rank(early > best)"),
        (["if own is None:", "    keep(model(1))"], None),
        (["if scores is None:", "    log(1)", "else:", "    keep(model(1))"], "scores is not None"),
    ],
)
def test_nothing_is_gathered_where_nothing_that_a_guard_hides_is_reached(body: list[str], needed: str | None) -> None:
    (line,) = contexts(textwrap.dedent(SAVES).replace("{body}", "\n        ".join(body)))
    assert line == f"with whole_on_each_rank(model{', needed=' + needed if needed else ''}):"


def test_what_may_not_be_there_is_not_read_in_front_of_the_guard() -> None:
    body = ["if averages is not None:", "    keep(averages.model(1))"]
    (line,) = contexts(textwrap.dedent(SAVES).replace("{body}", "\n        ".join(body)))
    assert line == "with whole_on_each_rank(averages, needed=averages is not None):"


def test_names_of_loops_behind_the_guard_are_not_read_in_front_of_it() -> None:
    program = """
        def main(nets, options):
            models = {name: DDP(net, **options) for name, net in nets.items()}
            if is_main():
                for name in nets:
                    torch.save(models[name].inner, models[name](1))
    """
    assert contexts(program) == ["with whole_on_each_rank(models):"]


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


def test_what_may_not_have_been_made_is_read_where_it_is_needed_alone() -> None:
    program = """
        def main(args, net):
            model = DDP(net)
            if args.average:
                average = DDP(net)
            if args.train:
                score = 1
            else:
                score = 2
            if is_main():
                keep(model(score))
                if args.average:
                    keep(average(score))

        main(torch.nn.Linear(2, 2), {})
    """
    assert contexts(program) == ["with whole_on_each_rank(model, average if args.average else None):"]


@pytest.mark.parametrize("loop", [
    "for x in data[dist.get_rank() :: dist.get_world_size()]:\n        model(x)",
    "mine = data[rank::4]\n    for i, x in enumerate(sorted(mine)):\n        model(x)",
    "out = [model(data[i]) for i in range(rank, len(data), 4)]",
    "for i, x in enumerate(data):\n        if i % 4 != rank:\n            continue\n        model(x)",
    "def predict(net, x):\n        return net(x)\n    for x in data[rank * 4 : rank * 4 + 4]:\n        predict(model, x)",
    "for i in range(options.rank, len(data), options.world_size):\n        model(data[i])",
    "for i in range(dist.get_rank(), len(data), dist.get_world_size()):\n        model(data[i])",
    "first, step = get_dist_info()\n    for i in range(first, len(data), step):\n        model(data[i])",
    "for i in range(get_dist_info()[0], len(data), 4):\n        model(data[i])",
    "first = get_dist_info()[0]\n    for x in data[first::4]:\n        model(x)",
    "def predict(opt, x):\n        opt = dict(opt)\n        return model(x, **opt)\n"
    "    for i in range(rank, len(data), 4):\n        predict({}, x)",
])  # fmt: skip
def test_loops_over_a_ranks_own_part_hold_the_model(loop: str) -> None:
    program = f"def run(net, options, data, rank):\n    model = DDP(net, **options)\n    {loop}\n"
    assert contexts(program) == ["with whole_on_each_rank(model):"]


@pytest.mark.parametrize("loop", [
    "for x in data:\n        model(x)",
    "for x in data[rank::4]:\n        model(x).sum().backward()",
    "def train(opt, x):\n        step(opt, model(x))\n    for x in data[rank::4]:\n        train({}, x)",
    "first, step = get_dist_info()\n    for i in range(0, len(data), step):\n        model(data[i])",
    "for x in data[:4]:\n        model(x)",
])  # fmt: skip
def test_loops_that_all_ranks_run_alike_hold_nothing(loop: str) -> None:
    assert contexts(f"def run(net, options, data, rank):\n    model = DDP(net, **options)\n    {loop}\n") == []


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


_LOGGED = """
    class Writer:
        def __init__(self, path):
            self.file = open(path, "w")

        def update(self, **values):
            for name, value in values.items():
                if isinstance(value, torch.Tensor):
                    value = value.item()
                self.file.write(f"{{name}} {{value}}")

    class Trainer:
        def __init__(self, net, options):
            self.model = DDP(net, **options)

        def norm(self):
            return torch.stack([p.norm() for p in self.model.parameters()]).norm()

        def step(self, batch, optimizer, writer):
            self.model(batch).sum().backward()
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            if writer is not None:
                {logged}

    def main(net, options, batches, path):
        trainer = Trainer(net, options)
        optimizer = torch.optim.AdamW(trainer.model.parameters())
        if dist.get_rank() == 0:
            writer = Writer(path)
        else:
            writer = None
        for batch in batches:
            trainer.step(batch, optimizer, writer)
"""


@pytest.mark.parametrize(("logged", "held"), [
    ("writer.update(norm=norm)", []),
    ("writer.update(norm=2 * norm)", []),
    ("writer.update(norm=self.norm())", ["with everything_whole_on_each_rank():"]),
])  # fmt: skip
def test_only_what_is_computed_behind_a_guard_is_held(logged: str, held: list[str]) -> None:
    assert contexts(_LOGGED.format(logged=logged)) == held


def test_a_writer_that_one_rank_has_guards_like_a_test_of_the_rank() -> None:
    program = _LOGGED.format(logged="writer.update(norm=self.norm())")
    text = HEAD + textwrap.dedent(program)
    source = Source.decode("train.py", text.encode())
    written = analyse([extract(source)], lambda _: source, Options(target_torch=(2, 13)), paths=["train.py"]).texts["train.py"]
    assert "with everything_whole_on_each_rank():\n            if writer is not None:" in written
