"""The output of a plain command reaches its log whole, also if processes keep the pipe or the disk is full."""

import fcntl
import json
import os
import subprocess
import termios
from pathlib import Path

from tests.support.waiting import until

from torchyard_agent.workers.relay import Relay


def relayed(command: str, log: Path, run_dir: Path) -> subprocess.Popen[bytes]:
    """Run a shell command to its end with its output in `log`."""
    relay = Relay(log, run_dir)
    process = subprocess.Popen(
        ["sh", "-c", command], stdout=relay.writing, stderr=relay.writing, start_new_session=True
    )
    relay.started()
    process.wait()
    relay.finish()
    relay.finish()
    return process


def test_all_of_it_is_in_the_log_once_the_command_has_ended(tmp_path):
    log = tmp_path / "rank-0.log"
    log.write_text("a round before\n")
    relayed("seq 1 50000; echo said > /dev/stderr; printf end", log, tmp_path)
    assert log.read_text() == "a round before\n" + "".join(f"{n}\n" for n in range(1, 50001)) + "said\nend"


def test_a_process_that_it_leaves_behind_is_not_waited_for(tmp_path):
    process = relayed("echo started; yes & echo ends", tmp_path / "rank-0.log", tmp_path)
    os.killpg(process.pid, 9)
    words = set((tmp_path / "rank-0.log").read_text().split())
    assert {"started", "ends"} <= words


def test_a_full_disk_costs_the_output_and_not_the_program(tmp_path):
    full = tmp_path / "rank-0.log"
    full.symlink_to("/dev/full")
    assert relayed("seq 1 50000; exit 3", full, tmp_path).returncode == 3
    (notice,) = json.loads((tmp_path / "notice.rank-0.json").read_text())["notices"]
    assert notice.startswith(f"the disk of {tmp_path} is full")


def test_output_that_a_full_disk_dropped_is_reported_at_the_end_if_there_is_space_again(tmp_path):
    full, run_dir = tmp_path / "rank-0.log", tmp_path / "run"
    full.symlink_to("/dev/full")
    relay = Relay(full, run_dir)
    pipe = os.dup(relay.writing)
    relay.started()
    os.write(pipe, b"dropped, and so is its notice: there is no folder yet")
    until(lambda: fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)) == bytes(4))  # all of it is read
    run_dir.mkdir()
    os.close(pipe)
    relay.finish()
    assert "is full" in (run_dir / "notice.rank-0.json").read_text()
