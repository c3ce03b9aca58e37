"""Agents as processes: the commands that they get and the files that they leave behind."""

import json
import os
import signal
import subprocess
from urllib.request import urlopen

from tests.support.waiting import DEADLINE, until


class Pod:
    """One agent process and what it was given."""

    def __init__(self, name, intake, folder, *, agent, command, python, env):
        self.name, self.intake = name, intake
        self.run_dir = folder / name
        self.run_dir.mkdir(parents=True)
        token = self.run_dir / "token"
        token.write_text(name)
        self.log_dir = self.run_dir / "logs"
        self.termination_log = self.run_dir / "termination-log"
        base = {key: value for key, value in os.environ.items() if not key.startswith(("TORCHYARD_", "PET_"))}
        self.env = {
            **base,
            "OMP_NUM_THREADS": "1",
            "TORCHYARD_JOB": "job",
            "TORCHYARD_NAMESPACE": "default",
            "TORCHYARD_JOB_UID": "uid",
            "TORCHYARD_POD_NAME": name,
            "TORCHYARD_POD_INDEX": "0",
            "TORCHYARD_OPERATOR_URL": intake.url,
            "TORCHYARD_TOKEN_FILE": str(token),
            "TORCHYARD_RUN_DIR": str(self.run_dir),
            "TORCHYARD_TERMINATION_LOG": str(self.termination_log),
            "TORCHYARD_GRACE_SECONDS": "10",
            **env,
        }
        self.output = (self.run_dir / "output").open("wb")
        self.process = subprocess.Popen(
            [python, str(agent), "--", *command],
            env=self.env,
            cwd=folder,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.round = 0
        self.logged = {}

    def ready(self):
        return self.wait_for(lambda state: state["state"] == "ready")

    def run(
        self,
        round_number=None,
        *,
        nodes=1,
        rank=0,
        address="127.0.0.1",
        port=None,
        procs=1,
        program=None,
        env=None,
        **fields,
    ):
        self.round = round_number or max(self.round, self.intake.state(self.name).get("round", 0)) + 1
        self.logged = {path.name: path.stat().st_size for path in self.log_dir.glob("rank-*.log")}
        self.intake.tell(
            self.name,
            "run",
            round=self.round,
            nodes=nodes,
            nodeRank=rank,
            masterAddress=address,
            masterPort=port or self.intake.state(self.name).get("masterPort") or 29512,
            procs=procs,
            env={**(env or {}), **({"PROGRAM": str(program)} if program else {})},
            **fields,
        )

    def tell(self, verb, **fields):
        self.intake.tell(self.name, verb, **fields)

    def wait_for(self, condition, seconds=DEADLINE):
        return self.intake.wait_for(self.name, condition, seconds)

    def ended(self, round_number=None, seconds=DEADLINE):
        """`exit` of the round, once it is reported."""
        number = round_number or self.round
        return self.wait_for(lambda state: state.get("exit", {}).get("round") == number, seconds)["exit"]

    def reported(self, condition):
        """The report of rank 0 once it meets a condition; one of the round before does not count."""

        def of_this_round(state):
            reports = [each for each in state["reports"] if each["round"] == self.round and each["rank"] == 0]
            return next(filter(condition, reports), None)

        return of_this_round(self.wait_for(of_this_round))

    def workers(self, count):
        """Process ids of the workers by rank, once all of them run."""
        return until(lambda: len(self.status()["workers"]) == count and self.status()["workers"])

    def port(self):
        return until(lambda: json.loads((self.run_dir / "agent.json").read_text()))["port"]

    def get(self, path):
        with urlopen(f"http://127.0.0.1:{self.port()}{path}", timeout=DEADLINE) as response:
            return response.read().decode()

    def status(self):
        return json.loads(self.get("/status"))

    def log(self, rank=0):
        """Output of a rank since the last `run`."""
        path = self.log_dir / f"rank-{rank}.log"
        return path.read_bytes()[self.logged.get(path.name, 0) :].decode() if path.exists() else ""

    def until_it_says(self, text, rank=0):
        """Wait for output of a rank since the last `run`."""
        until(lambda: text in self.log(rank))

    def exited(self, seconds=DEADLINE):
        return self.process.wait(seconds)

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.output.close()
