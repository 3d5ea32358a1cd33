import sys

import torch.distributed as dist
from mingpt import distributed
from mingpt.config import Config
from mingpt.runner import run

if __name__ == "__main__":
    config = Config()
    config.merge_from_args(sys.argv[1:])
    distributed.init()
    run(config)
    dist.destroy_process_group()
