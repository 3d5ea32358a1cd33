"""What existed only for a construct that is gone goes with it."""

from __future__ import annotations

from migrating import analyse_texts
from state_programs import FSDP, findings, migrated
from to_fsdp2.transforms.findings import Level

SAVE = """
def save(model: FSDP, rank, log):
    kind = StateDictType.FULL_STATE_DICT
    if rank == 0:
        name = "all"
    else:
        name = "none"
    {more}
    with FSDP.state_dict_type(model, kind):
        state = model.state_dict()
    log(rank)
    return state
"""


def test_variable_of_a_context_goes_with_it() -> None:
    after = migrated(FSDP, SAVE.format(more="pass"))
    assert "kind" not in after
    assert 'name = "all"' in after  # nothing read it before, either


def test_site_in_a_removed_assignment_says_so() -> None:
    (finding,) = findings(FSDP, SAVE.format(more="pass"), "FS408")
    assert finding.level is Level.SAFE
    assert finding.message == "goes with its assignment, which nothing reads any more"


def test_variable_that_is_read_elsewhere_stays() -> None:
    assert 'kind = "FULL_STATE_DICT"' in migrated(FSDP, SAVE.format(more="log(kind)"))


def test_assignment_that_does_something_stays() -> None:
    after = migrated(FSDP, SAVE.format(more="kind = log('which') or kind"))
    assert "kind = log('which') or kind" in after


def test_choice_between_converted_and_plain_state_collapses() -> None:
    after = migrated(
        FSDP,
        """
        def is_sharded(model):
            \"\"\"Whether any part is.\"\"\"
            return any(isinstance(module, FSDP) for module in model.modules())


        def to_load(model, optimizer, state):
            found = (
                FSDP.optim_state_dict_to_load(model, optimizer, state)
                if is_sharded(model)
                else state
            )
            return found


        def main(net, state):
            model = FSDP(net, use_orig_params=True)
            optimizer = torch.optim.AdamW(model.parameters())
            optimizer.load_state_dict(to_load(model, optimizer, state))
        """,
    )
    assert "    found = state\n    return found" in after


def test_choice_by_a_test_that_does_something_stays() -> None:
    program = """
        def contains_shards(model):
            print("asked")
            return any(isinstance(module, FSDP) for module in model.modules())


        def to_load(model, optimizer, state):
            return FSDP.optim_state_dict_to_load(model, optimizer, state) if contains_shards(model) else state
        """
    assert "return state if contains_shards(model) else state" in migrated(FSDP, program)


_OPTIONS = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def build(model, given, device, flag):
    torch.cuda.set_device(device)
    options = {made}
    if flag:
        # newer versions have it
        options["static_graph"] = True
    {more}
    return DDP(model, device_ids=[device], broadcast_buffers=False, **options)
"""


def test_options_that_are_put_together_go_with_the_call() -> None:
    _, results = analyse_texts({"build.py": _OPTIONS.format(made="{}", more="given = 1")})
    assert "options" not in results["build.py"] and "newer versions" not in results["build.py"]


def test_options_that_others_see_stay() -> None:
    for made, more in (("{}", "log(options)"), ("given", "given = 1")):
        _, results = analyse_texts({"build.py": _OPTIONS.format(made=made, more=more)})
        assert 'options["static_graph"] = True' in results["build.py"]


def test_a_comment_about_unwrapping_goes_with_what_unwrapped() -> None:
    text = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def evaluate(model: DDP, batches):
    # the batches of all ranks
    batches = list(batches)
    # unwrap DDP for the evaluation
    model = model.module
    return model(batches)
"""
    _, results = analyse_texts({"evaluate.py": text})
    assert "unwrap DDP" not in results["evaluate.py"]
    assert "    # the batches of all ranks\n    batches = list(batches)\n    return model" in results["evaluate.py"]


_FROM_SETTINGS = """\
import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel
from settings import any_left, is_frozen, \\
    is_large


def build(model, settings, device, distributed, unused=None):
    torch.cuda.set_device(device)
    options = settings.get("options", {})
    if distributed:
        frozen = is_frozen(model)
        if unused is None:
            unused = frozen
        options["device_ids"] = [device]
        if "find_unused_parameters" not in options:
            options["find_unused_parameters"] = unused
        model = DistributedDataParallel(model, broadcast_buffers=False, **options)
    else:
        options["device_ids"] = [device]
        model = DataParallel(model, **options)
    return model
"""


def test_entries_that_only_the_call_takes_go_with_it() -> None:
    analysis, results = analyse_texts({"build.py": _FROM_SETTINGS})
    head, _, plain = results["build.py"].partition("    else:\n")
    assert 'options["device_ids"] = [device]' in plain
    assert "device_ids" not in head and "frozen" not in head and "unused =" not in head
    assert "import any_left, \\\n    is_large\n" in head
    (spread,) = [finding for finding in analysis.findings if "**options" in finding.message]
    assert "put into it here (device_ids, find_unused_parameters) go" in spread.message
    assert "different parameters in one step" in spread.message
    assert spread.message.endswith("; unused is not read there any more")


def test_no_blank_line_is_left_at_the_head_of_a_block() -> None:
    body = _FROM_SETTINGS.replace("        model = Distributed", "\n        model = Distributed")
    _, results = analyse_texts({"build.py": body})
    assert "    if distributed:\n        for tensor in" in results["build.py"]
