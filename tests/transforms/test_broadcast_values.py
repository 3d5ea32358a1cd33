"""What one rank finds and sends to all: tests of it let all ranks in, or none."""

from __future__ import annotations

import textwrap

from migrated_texts import HEAD, migrated


def train(program: str) -> str:
    """The new text of a program."""
    return migrated(train=HEAD + "import torch.distributed as dist\n\n" + textwrap.dedent(program))["train"]


def test_what_one_rank_finds_and_broadcasts_is_known_to_all() -> None:
    program = """
        def main(args):
            model = DDP(nn.Linear(4, 4))
            resume = None
            if dist.get_rank() == 0:
                resume = args.path
            {shared}
            if resume is None:
                return
            model.eval()
            model(torch.ones(2, 4))


        main(None)
    """
    found = [train(program.format(shared=shared)) for shared in
             ("pass", "resume = broadcast_object(args, resume)", "box = [resume]\n            dist.broadcast_object_list(box)\n"
              "            resume = box[0]")]  # fmt: skip
    assert ["whole_on_each_rank" in new for new in found] == [True, False, False]


def test_a_variable_of_what_was_sent_to_all_ranks() -> None:
    program = """
        def broadcast_object(args, found):
            box = [found] if dist.get_rank() == 0 else [None]
            dist.broadcast_object_list(box)
            return box[0]


        def main(args):
            model = DDP(nn.Linear(4, 4))
            found = None
            if dist.get_rank() == 0:
                found = open(args.path)
            {shared}
            args.resume = found
            if args.resume is not None:
                model.module.load_state_dict(torch.load(args.resume))
                model(torch.ones(2, 4))


        main(load())
    """
    found = [train(program.format(shared=shared)) for shared in ("pass", "found = broadcast_object(args, found)")]
    assert ["whole_on_each_rank" in new for new in found] == [True, False]
