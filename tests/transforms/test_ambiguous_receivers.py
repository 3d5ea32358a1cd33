"""Code where names, methods and tests could mean a model or something else."""

from __future__ import annotations

import textwrap

from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.text.source import Source


def migrated(program: str) -> str:
    text = "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n\n\n" + textwrap.dedent(program)
    source = Source.decode("train.py", text.encode())
    analysis = analyse([extract(source)], lambda _: source, Options(target_torch=(2, 13)), paths=["train.py"])
    assert not analysis.errors
    return analysis.texts["train.py"]


def test_classes_that_isinstance_gets_by_name() -> None:
    text = migrated("""
        def f(net, options):
            model = DDP(net, **options)
            kinds = (DDP, torch.nn.DataParallel)
            others = (torch.nn.DataParallel, DDP)
            while isinstance(model, others):
                model = model.module
            return isinstance(model, kinds)
    """)
    assert "kinds = (FSDPModule, torch.nn.DataParallel)" in text
    assert "others = (torch.nn.DataParallel, DDP)" in text


def test_an_assertion_that_there_is_a_wrapper() -> None:
    text = migrated("""
        class Proxy(torch.nn.Module):
            def __init__(self, module):
                super().__init__()
                assert hasattr(module, "module"), "a wrapper"
                self.module = module

            def __getattr__(self, name):
                return getattr(self.module.module, name)

        def f(net, options):
            return Proxy(DDP(net, **options))
    """)
    assert 'assert isinstance(module, FSDPModule) or hasattr(module, "module"), "a wrapper"' in text


def test_methods_of_optimizers_out_of_a_mixture() -> None:
    text = migrated("""
        class Net(torch.nn.Linear):
            def loss(self, x):
                return (x @ self.weight).sum()

        def prepare(*things):
            return [DDP(thing) if isinstance(thing, torch.nn.Module) else thing for thing in things]

        model, optimizer = prepare(Net(2, 2), torch.optim.SGD(Net(2, 2).parameters(), 0.1))
        optimizer.step()
        optimizer.add_group(1)
        optimizer.load_state_dict({})
        model.module.loss(1)
    """)
    assert "\noptimizer.step()" in text and "\noptimizer.add_group(1)" in text
    assert "\noptimizer.load_state_dict({})" in text
    assert 'forward_method(unwrap(model), "loss")(1)' in text


def test_the_first_of_a_generator() -> None:
    text = migrated("""
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def f(net, options):
            model = FSDP(net, **options)
            first = next(m for m in model.modules() if isinstance(m, FSDP))
            first.clip_grad_norm_(1.0)
    """)
    assert "clip_model_grad_norm(first, 1.0)" in text or "clip_grad_norm_(first.parameters(), 1.0)" in text


def test_models_that_some_library_writes_as_objects() -> None:
    text = migrated("""
        import cloudpickle
        import mlflow.pytorch
        import somewhere

        def f(net, options, x, path):
            model = DDP(net, **options)
            mlflow.pytorch.log_model(pytorch_model=model.module, name="model")
            torch.onnx.export(model, (x,), path)
            somewhere.deep.save_model(path, model)
            somewhere.dump([model, 1], path)
            somewhere.show(torch.jit.trace(model.module, x))
            somewhere.show(model)
            somewhere.dump(options, path)
            cloudpickle.dumps(obj=model)
    """)
    for line in (
        'mlflow.pytorch.log_model(pytorch_model=as_plain(model), name="model")',
        "torch.onnx.export(as_plain(model), (x,), path)",
        "somewhere.deep.save_model(path, as_plain(model))",
        "somewhere.dump(as_plain([model, 1]), path)",
        "somewhere.show(torch.jit.trace(to_trace(model), x))",
        "somewhere.show(model)",
        "somewhere.dump(options, path)",
        "cloudpickle.dumps(obj=as_plain(model))",
    ):
        assert f"    {line}\n" in text


def test_members_of_a_models_own_are_not_the_wrappers() -> None:
    text = migrated("""
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.join = torch.nn.Sequential(torch.nn.Linear(2, 2))

            def forward(self, x):
                return self.join(x)

        def f(options):
            return DDP(Net(), **options)
    """)
    assert "return self.join(x)" in text


def test_members_of_wrappers_behind_a_test_of_the_class() -> None:
    text = migrated("""
        def device_of(model, options):
            if isinstance(model, DDP):
                return model.device
            return model.place.device

        def f(net, options):
            return device_of(DDP(net), options)
    """)
    assert "return next(model.parameters()).device\n" in text and "return model.place.device\n" in text


def test_class_methods_are_bound_to_their_class() -> None:
    text = migrated("""
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        class Trainer:
            @classmethod
            def run(cls, options, model, path):
                cls.save(options, FSDP(model), path)

            @classmethod
            def save(cls, options, model, path):
                torch.save(model.module.state_dict(), path)

        def f(options, net, path):
            Trainer.run(options, net, path)
            torch.save(net.state_dict(), path)
    """)
    assert "torch.save(state_of(model), path)" in text and "torch.save(state_of(net), path)" in text


def test_averages_that_inherit_a_librarys() -> None:
    text = migrated("""
        class Average(torch.optim.swa_utils.AveragedModel):
            def __init__(self, model, decay):
                super().__init__(model, avg_fn=lambda a, p, n: decay * a + (1 - decay) * p)

        def f(net, options):
            model = DDP(net, **options)
            average = Average(model.module, decay=0.9)
            average.update_parameters(model)
    """)
    assert "Average(as_plain(model), decay=0.9)" in text and "update_parameters(as_plain(model))" in text


def test_writes_into_parameters_are_not_made_to_copies_of_them() -> None:
    text = migrated("""
        def f(net, options, pads, tied, i):
            model = DDP(net, **options)
            model.module.head.weight.detach().mul_(0.9)
            model.module.head.weight.data.view(-1).clamp_(0)
            model.module.head.weight[pads].fill_(0)
            tied[i] = model.module.head.weight
            flat = model.module.head.weight.data.view(-1)
            flat.clamp_(0)
            rows = model.module.head.weight.detach()
            rows[i] = 0
            return torch.mm(pads, model.module.head.weight.detach().t())
    """)
    assert "whole(" not in text.partition("def f(")[2]


def test_parts_that_a_library_made() -> None:
    text = migrated("""
        import torchvision
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.backbone = torchvision.models.resnet18()

            def forward(self, x):
                return self.backbone(x)


        def main():
            model = FSDP(Net())
            torch.save(model.module.backbone.state_dict(), "backbone.pt")


        main()
    """)
    assert "torch.save(state_of(model.backbone)" in text


def test_a_registry_holds_more_than_what_the_repository_puts_in() -> None:
    text = migrated("""
        import inspect

        KINDS = {}
        for name, kind in inspect.getmembers(torch.optim):
            KINDS[name] = kind


        def register(kind):
            KINDS[kind.__name__] = kind
            return kind


        @register
        class Dummy:
            def __init__(self, parameters):
                self.parameters = parameters


        def main(name):
            model = DDP(torch.nn.Linear(2, 2))
            optimizer = KINDS[name](model.parameters())
            torch.save(optimizer.state_dict(), "optimizer.pt")


        main("SGD")
    """)
    assert "keep_state_dicts_whole(model)" in text
