"""Round start to first finished all-reduce, two CPU ranks: warm agent against plain torchrun; and stop to next start.

    python benchmarks/restart.py [REPEATS]

Prints a table of medians in milliseconds. Everything is real: the agent's zipapp, torch's launcher, gloo.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from torchyard_agent.build import build

DEADLINE_SECONDS = 900.0  # ends only what hangs
PROGRAM = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
if dist.get_rank() == 0:
    open(os.environ["MARK"], "w").write(repr(time.time()))
time.sleep(float(os.environ["LINGER"]))
"""


class Intake:
    """The smallest operator: one pod, one command."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.command, self.revision, self.state = {"verb": "wait"}, 1, {}
        intake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with intake.changed:
                    intake.state = request
                    intake.changed.notify_all()
                    intake.changed.wait_for(lambda: intake.revision != request["revision"], request["wait"])
                    answer = {"revision": intake.revision, "interval": 10.0, "command": intake.command}
                data = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """An agent that drops a poll is no error."""

        self.server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def tell(self, **command: object) -> None:
        with self.changed:
            self.command, self.revision = command, self.revision + 1
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[dict], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.state and condition(self.state), DEADLINE_SECONDS), self.state


def mark_of(path: Path) -> float:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        text = path.read_text() if path.exists() else ""
        if text:
            path.unlink()
            return float(text)
        time.sleep(0.001)
    raise TimeoutError(path)


def agent_process(folder: Path, intake: Intake, command: list[object], **env: str) -> subprocess.Popen[bytes]:
    (folder / "token").write_text("token")
    settings = {
        "JOB": "bench",
        "NAMESPACE": "default",
        "JOB_UID": "uid",
        "POD_NAME": "pod",
        "POD_INDEX": "0",
        "OPERATOR_URL": f"http://127.0.0.1:{intake.server.server_address[1]}",
        "TOKEN_FILE": str(folder / "token"),
        "RUN_DIR": str(folder / "run"),
    }
    build(folder / "agent.pyz")
    return subprocess.Popen(
        [sys.executable, folder / "agent.pyz", "--", *map(str, command)],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            **{f"TORCHYARD_{key}": value for key, value in settings.items()},
            **env,
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def run(intake: Intake, number: int, program_env: dict[str, str], procs: int = 2) -> float:
    port = intake.state["masterPort"]
    start = time.time()
    intake.tell(
        verb="run",
        round=number,
        nodes=1,
        nodeRank=0,
        masterAddress="127.0.0.1",
        masterPort=port,
        procs=procs,
        env=program_env,
    )
    return start


def warm(folder: Path, repeats: int) -> tuple[list[float], list[float]]:
    intake, mark = Intake(), folder / "mark"
    script = folder / "train.py"
    script.write_text(PROGRAM)
    process = agent_process(folder, intake, ["torchrun", script])
    starts, restarts = [], []
    try:
        intake.wait_for(lambda state: state["state"] == "ready")
        for number in range(1, 2 * repeats + 1, 2):
            start = run(intake, number, {"MARK": str(mark), "LINGER": "600"})
            starts.append(mark_of(mark) - start)
            pids = json.loads((folder / "run" / "workers.json").read_text())["pids"]
            killed = time.time()
            os.kill(int(pids["1"]), signal.SIGKILL)
            intake.wait_for(lambda state, number=number: state.get("exit", {}).get("round") == number)
            run(intake, number + 1, {"MARK": str(mark), "LINGER": "0"})
            restarts.append(mark_of(mark) - killed)
            intake.wait_for(lambda state, number=number: state.get("exit", {}).get("round") == number + 1)
        intake.tell(verb="exit", code=0)
        process.wait(DEADLINE_SECONDS)
    finally:
        process.kill()
        process.wait()
    return starts, restarts


def cold(folder: Path, repeats: int) -> list[float]:
    mark, times = folder / "mark", []
    for _ in range(repeats):
        start = time.time()
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        ended = subprocess.run(
            [*torchrun, folder / "train.py"],
            env={**os.environ, "OMP_NUM_THREADS": "1", "MARK": str(mark), "LINGER": "0"},
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if ended.returncode:
            sys.exit(f"torchrun ended with {ended.returncode}: {ended.stderr}")
        times.append(mark_of(mark) - start)
    return times


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        starts, restarts = warm(folder, repeats)
        torchrun = cold(folder, repeats)
    print(f"{'2 ranks, CPU, gloo':44} {'median ms':>10} {'min':>8} {'max':>8}")
    for label, times in (
        ("warm: run command -> first all-reduce", starts),
        ("warm: kill -9 of a rank -> next all-reduce", restarts),
        ("cold: torchrun -> first all-reduce", torchrun),
    ):
        figures = [1000 * value for value in (statistics.median(times), min(times), max(times))]
        print(f"{label:44} {figures[0]:10.0f} {figures[1]:8.0f} {figures[2]:8.0f}")


if __name__ == "__main__":
    main()
