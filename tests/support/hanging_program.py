"""A user's program whose rank 1 hangs in the first round, before its fourth step."""

PROGRAM = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)

def read_batch(step):
    if step == 3 and dist.get_rank() == 1 and os.environ["TORCHYARD_ROUND"] == "1":
        print("no data", flush=True)
        time.sleep(600)
    return torch.ones(2)

for step in range(6):
    (weight * read_batch(step)).sum().backward()
    dist.all_reduce(weight.grad)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""
