"""What a rank may use: by the narrowest limit around it, as the kernel tells it."""

from mmap import PAGESIZE, mmap

import pytest
import torch
from torch.nn import functional

from torchyard_trainers.core import losses
from torchyard_trainers.core.device import as_on_gpu
from torchyard_trainers.core.losses import IGNORE, linear_cross_entropy
from torchyard_trainers.core.memory import limits
from torchyard_trainers.core.memory.limits import HostMemory, hold_to, memory_left
from torchyard_trainers.core.parallel import strategy_by_memory

GIB = 1024**3


@pytest.fixture
def machine(tmp_path):
    """Folders as the kernel shows them, with 100 GiB available."""
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {100 * GIB // 1024} kB\n")

    def around(line, **limits):
        (proc / "self" / "cgroup").write_text(f"{line}\n")
        for path, (names, limit, used, files) in limits.items():
            folder = cgroups / path.replace("_", "/")
            folder.mkdir(parents=True, exist_ok=True)
            limit_name, use_name, file_name = names
            (folder / limit_name).write_text(f"{limit}\n")
            (folder / use_name).write_text(f"{used}\n")
            (folder / "memory.stat").write_text(f"anon 5\n{file_name} {files}\n")
        return memory_left(cgroups, proc)

    return around


V2 = ("memory.max", "memory.current", "inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def test_the_memory_of_the_machine_counts_if_no_cgroup_has_a_lower_limit(machine):
    assert machine("0::/", none=(V2, "max", 0, 0)) == 100 * GIB


def test_the_narrowest_cgroup_counts_and_pages_of_files_are_given_back(machine):
    left = machine("0::/a/b", a=(V2, 30 * GIB, 12 * GIB, 2 * GIB), a_b=(V2, 50 * GIB, 10 * GIB, 0))
    assert left == 20 * GIB


def test_an_old_cgroup_counts_as_well(machine):
    assert machine("4:memory:/pod", memory_pod=(V1, 8 * GIB, 3 * GIB, 1 * GIB)) == 6 * GIB


def test_a_container_that_does_not_see_its_path_reads_its_root(machine, tmp_path):
    (tmp_path / "cgroup").mkdir()
    for name, text in {"memory.max": 4 * GIB, "memory.current": GIB, "memory.stat": "inactive_file 0"}.items():
        (tmp_path / "cgroup" / name).write_text(str(text))
    assert machine("0::/kubepods/pod1") == 3 * GIB


def test_ranks_of_a_node_share_what_is_left_and_each_keeps_what_it_has(monkeypatch):
    # What the machine has left changes from one moment to the next.
    monkeypatch.setattr(limits, "memory_left", lambda: 400 * GIB)
    has = HostMemory(1).limit - 400 * GIB
    assert 0 < has < 50 * GIB
    assert HostMemory(4).limit == pytest.approx(has + 100 * GIB, abs=GIB)
    assert HostMemory(4, fraction=0.5).limit == pytest.approx((has + 100 * GIB) / 2, abs=GIB)


def test_the_peak_is_that_of_the_work_since_the_start():
    memory = HostMemory(1)
    touch(100 * 1024**2)
    memory.start()
    before = memory.peak()
    touch(64 * 1024**2)
    assert 60 * 1024**2 < memory.peak() - before < 80 * 1024**2


def touch(size):
    """Map and write `size` bytes, then unmap them. An allocator might use memory that earlier tests have freed."""
    with mmap(-1, size) as pages:
        for page in range(0, size, PAGESIZE):
            pages[page] = 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU: run `pytest tests/trainers` where there is one")
def test_a_gpu_refuses_what_is_beyond_its_fraction():
    device = torch.device("cuda", 0)
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info(device)[1]
    hold_to(device, 0.02 + torch.cuda.memory_reserved(device) / total)  # what earlier tests hold
    try:
        torch.empty(total // 100, dtype=torch.uint8, device=device)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(total // 25, dtype=torch.uint8, device=device)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


@pytest.mark.parametrize(
    ("parameters", "world", "local", "strategy"),
    [
        (4e9, 16, 8, "ddp"),  # 64 GB of 68
        (5e9, 16, 8, "hsdp"),  # 80 GB, 10 on each of 8
        (30e9, 16, 8, "hsdp"),
        (40e9, 16, 8, "fsdp"),  # 640 GB: 80 on each of 8, 40 on each of 16
        (5e9, 16, 1, "fsdp"),
        (5e9, 8, 8, "fsdp"),
    ],
)
def test_auto_takes_the_strategy_that_communicates_least_and_fits(parameters, world, local, strategy):
    assert strategy_by_memory(16 * int(parameters), 80 * 10**9, world, local) == strategy


@pytest.mark.parametrize(
    ("dtype", "on_gpu", "near"),
    [
        (torch.float32, False, 1e-6),
        (torch.float32, True, 1e-6),
        (torch.bfloat16, False, 1e-2),
        (torch.bfloat16, True, 2e-2),
        (torch.float16, False, 2e-3),
    ],
)
@pytest.mark.parametrize("targets", [64, 65, 3])
def test_the_loss_of_an_output_layer_is_the_cross_entropy_of_its_logits(dtype, on_gpu, near, targets, monkeypatch):
    monkeypatch.setattr(losses, "CHUNK_ON_GPU", 20_000)  # 20 targets
    torch.manual_seed(0)
    leaves = [torch.randn(shape, requires_grad=True) for shape in ((targets, 32), (1000, 32), (1000,))]
    hidden, head, bias = leaves
    target = torch.randint(0, 1000, (targets,))
    target[::7] = IGNORE
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32), as_on_gpu(wanted=on_gpu):
        loss = linear_cross_entropy(hidden, head, target, bias)
    gradients = torch.autograd.grad(0.3 * loss, leaves)
    plain = functional.cross_entropy(hidden @ head.T + bias, target, reduction="sum", ignore_index=IGNORE)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(plain.item(), rel=near)
    for ours, exact in zip(gradients, torch.autograd.grad(0.3 * plain, leaves), strict=True):
        assert ours.dtype == torch.float32
        assert (ours - exact).abs().max() < near * exact.abs().max()


@pytest.mark.parametrize(("dtype", "on_gpu"), [(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)])
def test_the_logits_of_a_large_vocabulary_are_never_there_at_once(dtype, on_gpu, monkeypatch):
    monkeypatch.setattr(losses, "CHUNK_ON_GPU", losses.CHUNK_ON_CPU // 2)  # its logits are there twice
    from torch.distributed._tools.mem_tracker import MemTracker

    hidden, head = torch.randn(512, 32, requires_grad=True), torch.randn(20_000, 32, requires_grad=True)
    tracker = MemTracker()
    tracker.track_external(hidden, head)
    in_half = torch.autocast("cpu", dtype, enabled=dtype != torch.float32)
    with tracker, in_half, as_on_gpu(wanted=on_gpu):
        linear_cross_entropy(hidden, head, torch.zeros(512, dtype=torch.int64)).backward()
    peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    assert peak < 0.5 * hidden.shape[0] * head.shape[0] * 4
