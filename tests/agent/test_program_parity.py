"""An unmodified program behaves as under plain torchrun: what it sees, what it prints, how it ends, what it leaves."""

import signal

import pytest
from tests.support.agents.parity import Program, behaviours, differences

pytestmark = pytest.mark.e2e

SEES = """
import __main__ as main
import inspect, io, json, multiprocessing, os, pickle, resource, signal, sys, threading
from pathlib import Path
import helper

class Here:
    pass

def function():
    return 1

started = Path.cwd()
os.chdir("/")
__builtins__.injected = "seen everywhere"
print(injected, helper.injected())
print([name for name in globals() if name.startswith("__")])
print(type(__builtins__), type(__loader__), __loader__.name, __loader__.path, __spec__, __package__, __doc__)
print(__name__, __file__, __cached__, Path(__file__).parent, main.function is function, function.__code__.co_filename)
print(__loader__.get_source("__main__")[:20], inspect.getsource(function), inspect.getsourcefile(Here))
print(pickle.loads(pickle.dumps(Here())).__class__ is Here, Here.__module__)
print(sys.argv, sys.orig_argv[1:], sys.path[0], sys.executable, sys.flags)
print([path for path in sys.path[1:] if path not in os.environ.get("PYTHONPATH", "").split(":")])
for stream in (sys.stdin, sys.stdout, sys.stderr):
    buffer = [kind for kind in (io.FileIO, io.BufferedReader, io.BufferedWriter) if isinstance(stream.buffer, kind)]
    print(type(stream), stream.name, stream.mode, stream.encoding, stream.errors, buffer, stream.isatty())
print(sys.stdout.line_buffering, sys.stdout.write_through, sys.stdout is sys.__stdout__, repr(sys.stdin.read()))
print({each: signal.getsignal(each) for each in signal.valid_signals() if each not in (9, 19, signal.SIGRTMIN + 11)})
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), signal.set_wakeup_fd(-1), os.umask(0), os.nice(0))
print({name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT")})
print(multiprocessing.get_start_method(allow_none=True), multiprocessing.current_process().name)
print(multiprocessing.parent_process(), multiprocessing.active_children(), started)
print([each.name for each in threading.enumerate()], threading.current_thread() is threading.main_thread())
print(len(os.listdir("/proc/self/task")))
print(os.getsid(0) == os.getpid() == os.getpgrp(), sorted(os.listdir("/proc/self/fd"))[:3])
print({name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT")})
print(sys.getswitchinterval(), sys.gettrace(), sys.getrecursionlimit(), hasattr(sys, "last_value"), sys.exc_info())
print(__import__("gc").isenabled())
"""
MODULE = """
import sys
from . import helper
print(__name__, __package__, __spec__.name, __file__, __loader__.name, type(__builtins__), sys.argv, sys.path[0])
print(helper.injected.__module__, sys.orig_argv[1:])
"""
HELPER = """
def injected():
    return __builtins__["injected"]
"""


def script(text, procs=1, **files):
    return Program({"train.py": text, **files}, procs=procs)


# Every way in which a program ends, and what Python does then.
ENDS = {
    "os._exit(0) of one rank": script("import os\nprint('out')\nif os.environ['RANK'] == '0': os._exit(0)\n", procs=2),
    "os._exit(3)": script("import os\nprint('out')\nos._exit(3)\n"),
    "exit(0) of C": script("import ctypes\nprint('out')\nctypes.CDLL(None).exit(0)\n"),
    "exit(5) of C": script("import ctypes\nprint('out')\nctypes.CDLL(None).exit(5)\n"),
    "os.execv": script("import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'print(1 + 1)'])\n"),
    "os.execv of a program that fails": script("import os\nos.execv('/bin/false', ['false'])\n"),
    "sys.exit() with a text": script("import sys\nsys.exit('a text')\n"),
    "sys.exit() with an object": script("import sys\nsys.exit([1])\n"),
    "sys.exit(-1)": script("import sys\nsys.exit(-1)\n"),
    "sys.exit(True)": script("import sys\nsys.exit(True)\n"),
    "sys.exit(258)": script("import sys\nsys.exit(258)\n"),
    "an exception": script(
        "def f():\n    raise LookupError('no')\ntry:\n    f()\nexcept LookupError as e:\n    raise ValueError from e\n"
    ),
    "an exception that cannot be printed": script(
        "class Broken(Exception):\n    def __str__(self):\n        raise ValueError('no text')\nraise Broken\n"
    ),
    "a group of exceptions": script("raise ExceptionGroup('many', [ValueError('one'), TypeError('two')])\n"),
    "a syntax error": script("print('never')\nif True print(1)\n"),
    "KeyboardInterrupt": script("import atexit\natexit.register(print, 'atexit')\nraise KeyboardInterrupt\n"),
    "an excepthook": script(
        "import sys\nsys.excepthook = lambda *error: print('hook', error[1], error[2].tb_lineno)\n1 / 0\n"
    ),
    "an excepthook that fails": script(
        "import sys\nsys.excepthook = lambda *error: 1 / 0\nraise ValueError('first')\n"
    ),
    "sys.stdout is None": script("import sys\nsys.stdout = None\n"),
    "sys.stdout is closed": script("import sys\nprint('out')\nsys.stdout.close()\n"),
    "sys.stderr is closed": script("import sys\nprint('out')\nsys.stderr.close()\nsys.exit('a text')\n"),
    "sys.stdout has no flush": script(
        "import sys\nclass Out:\n    write = sys.stdout.write\nsys.stdout = Out()\nprint('out')\n"
    ),
    "the last flush fails": script("import sys\nsys.stdout = open('/dev/full', 'w')\nprint('lost')\nsys.exit(3)\n"),
    "descriptors 1 and 2 are closed": script("import os\nprint('out')\nos.close(1)\nos.close(2)\n"),
    "killed": script("import os\nprint('out')\nos.kill(os.getpid(), 9)\n"),
    "SIGTERM": script("import os\nprint('out')\nos.kill(os.getpid(), 15)\n"),
    "abort": script("import os\nos.abort()\n"),
    "segmentation fault": script("import ctypes\nctypes.string_at(0)\n"),
    "its own signal handler": script(
        "import os, signal, sys\nsignal.signal(15, lambda *_: sys.exit('handled'))\nos.kill(os.getpid(), 15)\n"
    ),
    "a library that only calls itself a module": script("""
import sys, types
class Lib:  # as those of cffi, which sys.modules holds as well
    __slots__ = ()
    __class__ = types.ModuleType
    __name__ = "lib"
sys.modules["package.lib"] = Lib()
print("out")
"""),
    "what atexit, threads and objects do": script("""
import atexit, concurrent.futures, tempfile, threading, time, weakref
class Object:
    def __init__(self, name): self.name = name
    def __del__(self): print("deleted", self.name)
class Cycle(Object):
    def __init__(self, name):
        super().__init__(name)
        self.me = self
held, cycle = Object("global"), Cycle("cycle")
weakref.finalize(held, print, "finalized")
atexit.register(print, "first registered, last called")
atexit.register(lambda: 1 / 0)
atexit.register(lambda: print("atexit sees", held.name))
outlives = lambda: (threading.main_thread().join(), print("a thread outlives the main one"))
threading.Thread(target=outlives).start()
threading.Thread(target=threading.Event().wait, daemon=True).start()
print("main")
pool = concurrent.futures.ThreadPoolExecutor(1)
pool.submit(print, "work left in a pool")
folder = tempfile.TemporaryDirectory()
"""),
    "a thread fails": script("import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join()\n"),
    "rank 0 forks a child that exits": script(
        """
import atexit, os, sys
atexit.register(lambda: print("atexit of", "child" if os.getpid() != parent else "parent"))
parent = os.getpid()
if os.environ["RANK"] == "0":
    child = os.fork()
    if child == 0:
        sys.exit(0)
    print("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print("goes on")
""",
        procs=2,
    ),
    "a forked child fails": script("""
import os
child = os.fork()
if child == 0:
    raise ValueError("only in the child")
print("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""),
}
PEER = """
import os, sys, torch, torch.distributed as dist
from torch.utils.data import DataLoader
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
batches = DataLoader(torch.ones(2 + dist.get_rank(), 2), num_workers=1)
for step, batch in enumerate(batches):
    model(batch).sum().backward()
    print("step", step, flush=True)
    if step == 1 and dist.get_rank() == 1:
        sys.stderr = open(os.devnull, "w")  # which words gloo has for a lost peer depends on the moment
"""
ENVIRONMENT = """
import logging, os, sys
print("torch" in sys.modules, "torch.nn" in sys.modules)
os.environ.update(OMP_NUM_THREADS="2", TORCH_LOGS="+distributed")
from torch.nn import Linear
import torch
print(torch.get_num_threads(), logging.getLogger("torch.distributed").level, torch.nn.Linear is Linear)
print(torch.__spec__.name, torch.__name__, type(torch.__loader__), type(torch.__spec__.loader), torch.__file__)
print([type(finder) for finder in sys.meta_path][-3:])
print(torch.ones(2).sum().item())
"""
ASKS = """
import importlib.util, sys
for _ in range(2):  # as transformers does before it imports torch
    spec = importlib.util.find_spec("torch")
    print(spec.name, spec.origin, spec.cached, spec.has_location, spec.parent, list(spec.submodule_search_locations))
    print("torch" in sys.modules)
import torch.nn
print(torch.ones(2).sum().item(), torch.nn.Linear(1, 1).weight.shape)
print(importlib.util.find_spec("torch") is torch.__spec__, importlib.util.find_spec("torch.nn").origin)
"""
WORKERS = """
import multiprocessing, os, sys
def work(number):
    return number + 1, __name__, multiprocessing.current_process().name.split("-")[0], os.path.basename(__file__)
class Held:
    value = 4
if __name__ == "__main__":
    multiprocessing.set_start_method("METHOD")
    with multiprocessing.Pool(1) as pool:
        print(pool.map(work, [1]), pool.apply(type, (Held(),)))
    queue = multiprocessing.Queue()
    process = multiprocessing.Process(target=queue.put, args=(Held(),))
    process.start()
    print(queue.get().value)
    process.join()
    print(process.exitcode, multiprocessing.get_start_method())
"""
MODES = ("plain", "cold", "warm", "templated")
METHODS = {
    f"multiprocessing by {method}": Program({"train.py": WORKERS.replace("METHOD", method)}, modes=MODES)
    for method in ("fork", "spawn", "forkserver")
}
FOLDER = """
import sys, helper
print(sys.argv, sys.path[0], __file__, __spec__.name, helper.injected)
1 / 0
"""
PROGRAMS = {
    "sees": Program({"train.py": SEES, "helper.py": HELPER}, ("NAME/train.py", "--lr", "1e-3", ""), modes=MODES),
    "a dotted path": Program({"train.py": "print(__file__)\n"}, ("./NAME/../NAME/train.py",)),
    "module": Program(
        {"__init__.py": "import sys\nprint(sys.argv)\n", "tool.py": MODULE, "helper.py": HELPER},
        ("-m", "module.tool", "x"),
        modes=MODES,
    ),
    "package": Program({"__init__.py": "", "__main__.py": MODULE, "helper.py": HELPER}, ("-m", "package")),
    "folder": Program(
        {
            "__main__.py": FOLDER,
            "helper.py": HELPER,
        },
        ("NAME", "x"),
    ),
    "module of the standard library's name": Program(
        {
            "train.py": "import queue, calendar\nprint(queue.mine, calendar.mine)\n",
            "queue.py": "mine = 1",
            "calendar.py": "mine = 2",
        }
    ),
    "environment that torch reads": Program({"train.py": ENVIRONMENT}, modes=("plain", "warm", "templated")),
    "question whether there is torch": Program({"train.py": ASKS}, modes=("plain", "warm", "templated")),
    "one rank ends before its peer": Program({"train.py": PEER}, procs=2, modes=("plain", "warm", "templated")),
    **ENDS,
    **METHODS,
}


@pytest.fixture(scope="module")
def behaved(tmp_path_factory):
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # programs inherit that
    try:
        return behaviours(PROGRAMS, tmp_path_factory.mktemp("parity"))
    finally:
        signal.signal(signal.SIGUSR2, before)


SAFE_PATH = """
import sys
print(sys.flags.safe_path, __file__, [path for path in sys.path if "safe-path" in path and "hooks" not in path])
import helper
"""


@pytest.fixture(scope="module")
def behaved_with_a_safe_path(tmp_path_factory):
    """Python reads the variable when it starts: it is in the environment of the pod, so of every process in it."""
    files = {"train.py": SAFE_PATH, "helper.py": HELPER}
    programs = {
        "script": Program(files),
        "module": Program({"__init__.py": "", "tool.py": SAFE_PATH, "helper.py": HELPER}, ("-m", "module.tool")),
    }
    folder = tmp_path_factory.mktemp("safe-path")
    return behaviours(programs, folder, {"PYTHONSAFEPATH": "1"})


@pytest.mark.parametrize("mode", ["cold", "warm"])
def test_with_pythonsafepath_no_folder_of_the_program_is_imported_from(behaved_with_a_safe_path, mode):
    plain = behaved_with_a_safe_path["plain"]
    assert "No module named 'helper'" in plain["script"].output[0]
    found = differences(plain, behaved_with_a_safe_path[mode])
    assert not found, found


@pytest.mark.parametrize("mode", ["cold", "warm", "templated"])
def test_programs_behave_as_under_plain_torchrun(behaved, mode):
    found = differences(behaved["plain"], behaved[mode])
    assert not found, found
