import argparse

import torch
import torch.distributed as dist
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from model import Block, Net
from wrapping import SteppingFSDP


def batch(generator):
    return torch.randn(4, 7, generator=generator), torch.randint(2, (4,), generator=generator)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--half", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = SteppingFSDP(Net(), ModuleWrapPolicy({Block}), half=args.half)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    for _ in range(6):
        loss = model.train_step([batch(generator) for _ in range(args.accumulate)], optimizer)
        if dist.get_rank() == 0:
            print(f"loss {loss!r}")
    evaluated = model.val_step(batch(generator))
    state = model.full_state()
    if dist.get_rank() == 0:
        print(f"evaluation loss {evaluated!r}")
        torch.save(state, "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
