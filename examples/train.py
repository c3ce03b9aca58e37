"""Classify points of two spirals with PyTorch DDP. Plain torchrun training: it knows nothing of what starts it.

torchrun --nproc-per-node 2 train.py --steps 1500
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def spirals(count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Points [count, 2] of two interleaved spirals and their labels [count]."""
    labels = torch.randint(0, 2, (count,), generator=generator)
    turn = torch.rand(count, generator=generator) * 3 * torch.pi
    angle = turn + labels * torch.pi
    points = torch.stack([angle.cos(), angle.sin()], dim=1) * (turn / 5)[:, None]
    return points + 0.05 * torch.randn(count, 2, generator=generator), labels


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--checkpoint", type=Path, default=Path("spirals.ckpt"))
    parser.add_argument("--out", type=Path, default=Path("spirals.pt"))
    args = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = (
        torch.device("cuda", rank % torch.cuda.device_count()) if torch.cuda.is_available() else torch.device("cpu")
    )
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)).to(device)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    start = 0
    if args.checkpoint.exists():
        state = torch.load(args.checkpoint, map_location=device, weights_only=True)
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]
        print(f"resumed at step {start}", flush=True)

    for step in range(start + 1, args.steps + 1):
        points, labels = spirals(args.batch, torch.Generator().manual_seed(step))
        logits = model(points[rank::world].to(device))
        loss = nn.functional.cross_entropy(logits, labels[rank::world].to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.save_every == 0:
            if rank == 0:
                state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, args.checkpoint.with_suffix(".tmp"))
                args.checkpoint.with_suffix(".tmp").replace(args.checkpoint)
                print(f"step {step}/{args.steps} loss {loss.item():.4f}", flush=True)
            dist.barrier()

    if rank == 0:
        torch.save(net.state_dict(), args.out)
        args.checkpoint.unlink(missing_ok=True)  # done: the next start is a new run
        print(f"wrote {args.out}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
