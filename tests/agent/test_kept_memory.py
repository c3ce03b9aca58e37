"""Workers without a GPU keep the memory they free: a step that requests it again pays for every page."""

import sys

import pytest

pytestmark = pytest.mark.e2e

# Larger than what glibc ever keeps by itself; pages of 2 MiB still mean 32 faults.
PROBE = """
import ctypes, resource
SIZE = 64 * 2**20
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc(ctypes.c_size_t(SIZE))
    ctypes.memset(block, 1, SIZE)
    libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print("kept" if faults() < 16 else "given back", flush=True)
"""
A_VARIABLE = {"MALLOC_TRIM_THRESHOLD_": "131072"}
A_TUNABLE = {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072"}


def test_a_warm_worker_keeps_its_memory(node, script):
    has_gpu = bool(node.ready()["gpus"])
    node.run(program=script(PROBE))
    assert node.ended()["code"] == 0
    assert node.log() == ("given back\n" if has_gpu else "kept\n")


@pytest.mark.parametrize(
    ("own", "said"),
    [({}, "kept"), (A_VARIABLE, "given back"), (A_TUNABLE, "given back")],
    ids=["by default", "the user's variable wins", "the user's tunable wins"],
)
def test_a_cold_worker_keeps_freed_memory_unless_the_user_configures_malloc(pod, script, own, said):
    one = pod(sys.executable, script(PROBE), CUDA_VISIBLE_DEVICES="", **own)
    one.ready()
    one.run()
    assert one.ended()["code"] == 0
    assert one.log() == f"{said}\n"
