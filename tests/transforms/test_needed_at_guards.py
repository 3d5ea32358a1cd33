"""Where a guard may hide nothing after all: what is gathered in front of it only if that is needed, or not at all."""

from __future__ import annotations

import textwrap

import pytest
from guarded_programs import HEAD, contexts
from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.text.source import Source

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
        (["if args.a != 'x':", "    keep(model(1))", 'elif args.a == "x":', "    keep(model(2))"], None),
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


OWN_NUMBERS = """
        class Trainer:
            def __init__(self, args, net, start):
                self.args, self.best, self.seen, self.kept = args, 0, int(start), 0
                self.model = DDP(net)

            def fit(self, data):
                for batch in data:
                    self.model(batch).sum().backward()
                    self.seen += 1
                    if self.model(batch).sum().item() < 1:
                        self.kept += 1
                    if is_main() and {test}:
                        self.save()

            def save(self):
                self.best = self.seen
                keep(self.model(1))
"""


@pytest.mark.parametrize(
    "test, given",
    [
        ("self.seen % self.args.every == 0", "self.model"),  # save() leaves it alone: asked in front of the context
        ("self.seen > self.args.first", "self.model"),
        ("self.kept > self.args.most", "self.model, needed=true_on_any_rank(self.kept > self.args.most)"),  # measured
        ("self.seen > self.best", None),  # save(), which one rank calls, changes it
    ],
)
def test_numbers_of_an_object_are_asked_for_where_all_ranks_have_them_alike(test: str, given: str | None) -> None:
    found = contexts(textwrap.dedent(OWN_NUMBERS).replace("{test}", test))
    assert found == ([f"with whole_on_each_rank({given}):"] if given is not None else [])


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


def test_a_long_condition_has_a_line_of_its_own() -> None:
    long = " and ".join(f"args.something_long_{number} > {number}" for number in range(4))
    body = [f"if {long}:", "    keep(model(1))"]
    text = HEAD + textwrap.dedent(SAVES).replace("{body}", "\n        ".join(body))
    source = Source.decode("train.py", text.encode())
    analysis = analyse([extract(source)], lambda _: source, Options(target_torch=(2, 13)), paths=["train.py"])
    assert f"    with whole_on_each_rank(\n        model,\n        needed={long},\n    ):\n        if is_main():\n" in (
        analysis.texts["train.py"])  # fmt: skip


def test_names_that_are_bound_behind_a_test_that_leaves_are_not_asked_in_front_of_it() -> None:
    program = """
        def score(model):
            return model(torch.ones(2)).sum().item()

        def main(net, options, data, args):
            model = DDP(net, **options)
            for x in data:
                if score(model) > args.best:
                    continue
                kind = args.kind_of(x)
                if kind.is_last:
                    raise RuntimeError(x)
                if args.deep > 0:
                    torch.save(model.inner, model(x))
    """
    (line,) = contexts(program)
    assert line == "with whole_on_each_rank(model, needed=args.deep > 0):"


@pytest.mark.parametrize("other", ["pass", "log((model, 1), args)"])
def test_loops_over_parameters_count_whatever_else_has_the_name(other: str) -> None:
    program = f"""
        def log(model, args):
            if is_main() and args.log:
                for name, p in model.named_parameters():
                    print(p.data.mean())
                    if args.kind == "l0":
                        print((p - 1).sum().item())

        def main(net, options, args):
            model = DDP(net, **options)
            log(model, args)
            {other}
    """
    (line,) = contexts(program)
    assert line == "with whole_on_each_rank(model):"  # inside of `if args.log:`
