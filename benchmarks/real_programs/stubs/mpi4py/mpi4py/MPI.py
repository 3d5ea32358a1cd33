import os

import torch.distributed as dist


class World:
    rank = int(os.environ.get("RANK", 0))
    size = int(os.environ.get("WORLD_SIZE", 1))

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return self.size

    def bcast(self, value, root=0):
        if not dist.is_initialized():
            return int(os.environ["MASTER_PORT"]) if isinstance(value, int) else os.environ["MASTER_ADDR"]
        box = [value]
        dist.broadcast_object_list(box, src=root)
        return box[0]


COMM_WORLD = World()
