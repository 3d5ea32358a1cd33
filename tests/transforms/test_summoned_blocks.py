"""Contexts of ``summon_full_params`` that are entered elsewhere, or whose body changes parameters."""

from __future__ import annotations

import pytest
from state_programs import FSDP, findings, migrated
from to_fsdp2.transforms.findings import Level

_HELPER = """
        def whole(model, writeback=True):
            if isinstance(model, FSDP):
                return FSDP.summon_full_params({arguments})
            return contextlib.nullcontext()
"""
_MAIN = """
        def main(net, batch):
            model = FSDP(net)
            optimizer = torch.optim.SGD(model.parameters())
            context = whole(model, False)
            with torch.no_grad(), context:
                {body}
"""
_COPIES = "copies = [p.clone() for p in model.parameters()]"


def _program(body: str = _COPIES, arguments: str = "model, writeback=writeback") -> str:
    return _HELPER.format(arguments=arguments) + _MAIN.format(body=body)


def test_returned_context_becomes_one_of_this_file() -> None:
    after = migrated(FSDP, _program())
    assert "return whole_parameters(model, writeback=writeback)" in after
    assert after.count("def whole_parameters(") == 1
    assert after.index("def whole_parameters(") < after.index("def whole(")


def test_positional_writeback_is_named_and_defaults_go() -> None:
    after = migrated(FSDP, _program(arguments="model, True, writeback, rank0_only=False"))
    assert "return whole_parameters(model, writeback=writeback)" in after


def test_two_contexts_share_one_definition() -> None:
    after = migrated(
        FSDP,
        """
        def main(net):
            model = FSDP(net)
            with FSDP.summon_full_params(model):
                torch.nn.init.normal_(model.weight)
            with FSDP.summon_full_params(model):
                torch.nn.init.zeros_(model.bias)
        """,
    )
    assert after.count("with whole_parameters(model):") == 2
    assert after.count("def whole_parameters(") == 1


def test_parameters_saved_in_a_block_for_every_wrapped_model_are_whole() -> None:
    assert not findings(FSDP, _program('torch.save(list(model.parameters()), "x.pt")'), "FS702")


def test_parameters_saved_where_the_context_has_another_condition_are_not() -> None:
    helper = """
        def whole(model, writeback=True):
            if writeback:
                return FSDP.summon_full_params(model)
            return contextlib.nullcontext()
"""
    program = helper + _MAIN.format(body='torch.save(list(model.parameters()), "x.pt")')
    assert [f.level for f in findings(FSDP, program, "FS702")] == [Level.MANUAL]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("model(batch)", "a forward runs"),
        ("batch.sum().backward()", "a backward runs"),
        ("optimizer.step()", "would be overwritten"),
        ("norms = [p.grad.norm() for p in model.parameters()]", "no gradients"),
        ("optimizer.zero_grad()", "no gradients"),
        ("other = torch.optim.SGD(model.parameters())", "would hold what is gone"),
        ("model.generate(batch)", "is not known"),
        ("evaluate(model, batch)", "a forward runs"),
        ("model.load_state_dict(torch.load('x'))", "is not known"),
    ],
)
def test_blocks_that_hold(body: str, said: str) -> None:
    program = _program(body) + "\n        def evaluate(model, batch):\n            return model(batch)\n"
    assert "whole_parameters" not in migrated(FSDP, program)
    (finding,) = findings(FSDP, program, "FS413")
    assert finding.level is Level.MANUAL
    assert said in finding.message


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("model, rank0_only=True, writeback=False", "rank0_only is True"),
        ("model, offload_to_cpu=writeback", "offload_to_cpu is writeback"),
        ("model, recurse=False", "recurse is False"),
        ("model, with_grads=True", "with_grads is True"),
        ("model, **options", "not written out"),
    ],
)
def test_arguments_that_hold(arguments: str, said: str) -> None:
    (finding,) = findings(FSDP, _program(arguments=arguments), "FS413")
    assert finding.level is Level.MANUAL
    assert said in finding.message


def test_context_that_is_kept_somewhere_else_holds() -> None:
    (finding,) = findings(
        FSDP,
        """
        def main(net, holder):
            model = FSDP(net)
            holder.context = FSDP.summon_full_params(model)
        """,
        "FS413",
    )
    assert finding.level is Level.MANUAL
    assert "where it is entered cannot be seen" in finding.message


@pytest.mark.parametrize(
    "body",
    [
        "halve(model)",
        "for module in model.modules(): halve(module)",
        "for module in model.modules(): module.reset_parameters()",
        "model.start_again()",
        "torch.nn.init.zeros_(model[0].bias)",
        "torch.nn.init.zeros_(model.module[0].bias)",
        "model.layers[0].weight.zero_()",
    ],
)
def test_work_that_is_handed_a_module_is_no_mere_reading(body: str) -> None:
    program = f"""
        class Net(torch.nn.Module):
            def start_again(self):
                self.layer.reset_parameters()

        def halve(module):
            for param in module.parameters():
                param.data.mul_(0.5)

        def main():
            model = FSDP(Net())
            with FSDP.summon_full_params(model):
                {body}
        """
    assert "with whole_parameters(model):" in migrated(FSDP, program)


def test_generation_runs_on_shards() -> None:
    after = migrated(
        FSDP,
        """
        def main(net, batch):
            model = FSDP(net)
            with FSDP.summon_full_params(model, writeback=False, recurse=False):
                return model.generate(batch)
        """,
    )
    assert "    return model.generate(batch)" in after
    assert "with " not in after


@pytest.mark.parametrize(
    ("work", "said"),
    [
        ("outside.merge(module)", "is not known"),
        ("print(module.weight.data.zero_(), module(1))", "a forward runs"),
        ("print([p.data.zero_() for p in module.parameters()], module(1))", "a forward runs"),
    ],
)
def test_model_of_which_nothing_is_known_is_the_one_that_is_summoned(work: str, said: str) -> None:
    program = f"""
        import outside

        def work(module: torch.nn.Module):
            with FSDP.summon_full_params(module, writeback=True):
                {work}

        def main(net):
            model = FSDP(net)
            model(1)
        """
    (finding,) = findings(FSDP, program, "FS413")
    assert finding.level is Level.MANUAL
    assert said in finding.message
