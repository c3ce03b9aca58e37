"""What a Python process leaves behind about its own end, in interpreters that end in every way."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import torchyard_agent

PREFIX = "import sys\nfrom torchyard_agent.workers import hooks\nhooks.install()\n"
HANDLED = "import traceback\ntry:\n    int('x')\nexcept ValueError:\n    traceback.print_exc()\n"
CAUGHT = """
try:
    try:
        int('x')
    except ValueError:
        sys.exit(3)
except SystemExit:
    pass
"""
PRINTED = "try:\n    int('x')\nexcept ValueError:\n    sys.excepthook(*sys.exc_info())\n"
ENDS = {
    "uncaught": ("raise LookupError('no')", 1, ("LookupError", "no")),
    "a hook of its own": ("sys.excepthook = print\nraise LookupError('no')", 1, ("LookupError", "no")),
    "a hook that calls ours": (
        "before = sys.excepthook\nsys.excepthook = lambda *error: before(*error)\nraise LookupError('no')",
        1,
        ("LookupError", "no"),
    ),
    "chained": ("try:\n    int('x')\nexcept ValueError as e:\n    raise KeyError('k') from e", 1, ("KeyError", "'k'")),
    "a handler that exits": (HANDLED + "    sys.exit(3)", 3, ("ValueError", "invalid literal for int()")),
    "a handler that exits with a text": (HANDLED + "    sys.exit('bad x')", 1, (None, "bad x")),
    "a text": ("sys.exit('lr is missing')", 1, (None, "lr is missing")),
    "handled, then an exit": (HANDLED + "sys.exit(3)", 3, None),
    "a function that a handler calls": (
        "def train():\n    sys.exit(3)\ntry:\n    int('x')\nexcept ValueError:\n    train()",
        3,
        None,
    ),
    "an exit that is caught": (f"{CAUGHT}sys.exit(4)", 4, None),
    "printed by the hook": (PRINTED + "sys.exit(3)", 3, None),
    "a thread": ("import threading\nthreading.Thread(target=int, args=['x']).start()", 0, None),
    "a thread, by the hook": (
        ("import threading\nthreading.excepthook = lambda args: sys.excepthook(*args[:3])\n"
        "threading.Thread(target=int, args=['x']).start()"),
        0,
        None,
    ),
    "an exit of a thread": (
        ("import threading\ndef f():\n    try:\n        int('x')\n    except ValueError:\n        sys.exit(3)\n"
        "thread = threading.Thread(target=f)\nthread.start()\nthread.join()\nsys.exit(3)"),
        3,
        None,
    ),
    "KeyboardInterrupt": ("raise KeyboardInterrupt", -2, None),
    "os._exit": (HANDLED + "    import os\n    os._exit(5)", 5, None),
    "no message": ("raise MemoryError", 1, ("MemoryError", "")),
    "a message of megabytes": ("raise ValueError('x' * 3_000_000)", 1, ("ValueError", "x" * 2000)),
    "a message that quotes a traceback": (
        "raise ValueError('remote:\\nTraceback (most recent call last):\\nKeyError: 1')",
        1,
        ("ValueError", "remote:\nTraceback"),
    ),
    "no text": (
        "class Odd(Exception):\n    def __str__(self):\n        raise KeyError\nraise Odd",
        1,
        ("__main__.Odd", "<str() of Odd failed>"),
    ),
    "too deep": ("def f():\n    f()\nf()", 1, ("RecursionError", "maximum recursion depth exceeded")),
}  # fmt: skip


@pytest.mark.parametrize(("program", "code", "left"), ENDS.values(), ids=ENDS)
def test_a_process_leaves_a_failure_file_only_for_what_ended_it(tmp_path, program, code, left):
    agent = str(Path(torchyard_agent.__file__).parents[1])
    env = {**os.environ, "TORCHYARD_ROUND": "1", "TORCHYARD_RUN_DIR": str(tmp_path), "PYTHONPATH": agent}
    ended = subprocess.run([sys.executable, "-c", PREFIX + program], env=env, capture_output=True, check=False)
    assert ended.returncode == code, ended.stderr
    documents = [json.loads(path.read_text()) for path in tmp_path.glob("failure.*.json")]
    assert len(documents) == (left is not None)
    for document in documents:
        exception, message = left or ("", "")
        assert document.get("exception") == exception
        assert document["message"].startswith(message)
        assert len(document["message"]) <= 2000
        assert document.get("exitCode", 1) == code
