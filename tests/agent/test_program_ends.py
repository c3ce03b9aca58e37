"""A warm worker's program ends as `python -u` ends it: what waits is asked to end, what works is waited for."""

import bz2
import gzip
import io
import lzma
import os
import subprocess
import sys
import zipfile

import pytest
from tests.support.waiting import DEADLINE

pytestmark = pytest.mark.e2e

POOL = """
import sys
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(1)
print(pool.submit(lambda: 1).result())
"""
PROCESSES = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
pool = ProcessPoolExecutor(1, multiprocessing.get_context("fork"))
print(pool.submit(abs, -1).result())
"""
# Each waits for the one before: whoever is out of turn keeps the others waiting for ever.
ORDER = """
import atexit, multiprocessing, threading
heard, told = multiprocessing.Pipe(duplex=False)
multiprocessing.get_context("fork").Process(target=lambda: print(heard.recv())).start()
atexit.register(told.send, "a child that atexit ends and waits for")
atexit.register(print, "atexit")
threading.Thread(target=lambda: (threading.main_thread().join(), print("a thread, after the main one"))).start()
print("main")
"""
BUFFERED = """
import io, sys
sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)))
print("in a buffer of the program's own")
sys.exit(3)
"""
ENDS = {
    "an open thread pool": POOL,
    "an open thread pool and an exit code": POOL + "sys.exit(3)\n",
    "an open thread pool and an exception": POOL + "raise LookupError('with a pool open')\n",
    "work left in a thread pool": POOL + "pool.submit(print, 'the last work')\nsys.exit(3)\n",
    "an open process pool": PROCESSES,
    "an open process pool and an exit code": PROCESSES + "raise SystemExit(3)\n",
    "threads, atexit and children": ORDER,
    "threads, atexit, children and an exit code": ORDER + "raise SystemExit(3)\n",
    "output in a buffer and an exit code": BUFFERED,
}


def as_python_ends_it(node, program):
    stage = node.run_dir.parent / "stage.py"  # what the node runs as well: its frame is in every traceback
    env = {**os.environ, "PROGRAM": str(program)}
    done = subprocess.run(
        [sys.executable, "-u", stage],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=DEADLINE,
        check=False,
    )
    return done.returncode, done.stdout.decode()


@pytest.mark.parametrize("program", ENDS.values(), ids=ENDS)
def test_a_program_ends_as_python_ends_it(node, script, program):
    path = script(program)
    node.run(program=path)
    ended = node.ended()
    assert (ended["code"], node.log()) == as_python_ends_it(node, path)


@pytest.mark.parametrize(
    "failing",
    ["import atexit\natexit.register(sys.exit, 5)\n", "import threading\nthreading._register_atexit(sys.exit, 5)\n"],
    ids=["atexit", "threading"],
)
@pytest.mark.parametrize("code", [0, 3])
def test_errors_after_the_end_of_the_program_are_reported_and_keep_its_exit_code(node, script, failing, code):
    path = script(f"{POOL}{failing}sys.exit({code})\n")
    node.run(program=path)
    ended = node.ended()
    assert ended["code"] == code == as_python_ends_it(node, path)[0]
    assert "Exception ignored" in node.log()
    assert "SystemExit: 5" in node.log()


@pytest.mark.parametrize("code", [0, 3])
def test_a_file_that_a_program_leaves_open_is_written_completely(node, script, tmp_path, code):
    losses = tmp_path / "losses.csv"
    program = f"""
import sys
file = open({str(losses)!r}, "w")
file.write("step,loss\\n")
sys.exit({code})
"""
    node.run(program=script(program))
    assert node.ended()["code"] == code
    assert losses.read_text() == "step,loss\n"


# What a reader of the file finds, and what leaves it open; a plain file is flushed only.
LEFT_OPEN = {
    "gzip": ("file = gzip.open(path, 'wb'); file.write(data)", gzip.decompress),
    "gzip, as text": ("file = gzip.open(path, 'wt'); file.write(data.decode())", gzip.decompress),
    "gzip in a file of its own": ("file = gzip.GzipFile(fileobj=open(path, 'wb')); file.write(data)", gzip.decompress),
    "gzip in a cycle": ("file = gzip.open(path, 'wb'); file.me = file; file.write(data)", gzip.decompress),
    "bz2": ("file = bz2.open(path, 'wb'); file.write(data)", bz2.decompress),
    "lzma": ("file = lzma.open(path, 'wb'); file.write(data)", lzma.decompress),
    "zip": (
        "file = zipfile.ZipFile(path, 'w'); file.writestr('losses.csv', data)",
        lambda found: zipfile.ZipFile(io.BytesIO(found)).read("losses.csv"),
    ),
}


@pytest.mark.parametrize(("leaves", "read"), LEFT_OPEN.values(), ids=LEFT_OPEN)
def test_a_compressed_file_that_is_left_open_can_be_read(node, script, tmp_path, leaves, read):
    path = tmp_path / "losses"
    program = f"""
import bz2, gzip, lzma, zipfile
path, data = {str(path)!r}, b"step,loss\\n" * 1000
{leaves}
"""
    node.run(program=script(program))
    ended = node.ended()
    assert ended["code"] == 0, (ended, node.log())
    assert read(path.read_bytes()) == b"step,loss\n" * 1000


@pytest.mark.parametrize(
    "end", ["os._exit(0)", "ctypes.CDLL(None).exit(0)", "os.execv('/bin/true', ['true'])", "sys.exit(os.fork() and 0)"]
)
def test_a_rank_that_ends_with_0_in_its_own_way_has_succeeded(node, script, end):
    node.run(procs=2, program=script(f"import ctypes, os, sys\nif os.environ['RANK'] == '0':\n    {end}\n"))
    ended = node.ended()
    assert (ended["code"], ended["failure"]) == (0, None)


def test_a_crash_leaves_the_stack_of_the_program(node, script):
    path = script("import ctypes\ndef crashes():\n    ctypes.string_at(0)\ncrashes()\n")
    node.run(program=path)
    ended = node.ended()
    found, shown = ended["failure"], "\n".join(ended["lines"])
    assert found["code"] == 139
    assert found["message"].startswith("Fatal Python error: Segmentation fault, at File ")
    assert f'File "{path}", line 3 in crashes' in shown
    assert "torchyard_agent" not in shown
    assert node.log() == "", "as under plain torchrun, which shows nothing"


def test_an_exception_that_cannot_be_printed_is_reported(node, script):
    node.run(program=script("class Broken(Exception):\n    def __str__(self):\n        return 1 / 0\nraise Broken\n"))
    ended = node.ended()
    found = ended["failure"]
    assert (found["exception"], found["message"]) == ("__main__.Broken", "<str() of Broken failed>")
    assert "raise Broken" in "\n".join(ended["lines"])


def test_a_restarted_program_can_count_its_restarts(node, script):
    node.run(program=script("import os\nprint(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"))
    assert node.ended()["code"] == 0
    assert node.log() == f"{node.round - 1}\n"


def test_variables_that_a_program_sets_too_late_for_a_warm_start_cause_a_notice(node, script):
    program = "import os\nos.environ.update(OMP_PROC_BIND='true', OMP_NUM_THREADS='1')\nimport torch\n"
    node.run(program=script(program))
    assert node.ended()["code"] == 0
    state = node.wait_for(lambda state: state["notices"])
    assert state["notices"] == [
        "the program sets OMP_PROC_BIND before `import torch`, which is too late in a warm start: set it in spec.env"
    ]
