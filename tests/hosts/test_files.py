"""Files on their way between hosts: downloads that replace nothing else, and copies of logs."""

import itertools
import json
from pathlib import Path

import pytest

from torchyard.cli.commands.fetches import Fetch, require_free
from torchyard.cli.errors import RefusalError
from torchyard.hosts.mirror import Outgoing, put
from torchyard.hosts.slurm import checked_options
from torchyard.hosts.wire import FilePart
from torchyard.local.gang_share import shares


def test_a_download_replaces_an_earlier_export_and_nothing_else(tmp_path: Path) -> None:
    web = tmp_path / "web"
    require_free([Fetch("export/web", web)])
    web.mkdir()
    (web / "manifest.json").write_text(json.dumps({"files": {"index.html": {}}}))
    (web / "index.html").touch()
    require_free([Fetch("export/web", web)])
    (web / "mine.css").touch()
    with pytest.raises(RefusalError, match=r"no export wrote: mine\.css"):
        require_free([Fetch("export/web", web)])
    with pytest.raises(RefusalError, match=r"no export wrote: mine\.css"):
        require_free([Fetch("final", web / "mine.css")])


def test_copies_of_logs_follow_what_grows_is_cut_and_begins_again(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    log = here / "demo-0-1/logs/rank-1.log"
    log.parent.mkdir(parents=True)
    outgoing = Outgoing(here)

    def copied() -> str:
        for part in outgoing.look():
            put(there, part)
        return (there / "demo-0-1/logs/rank-1.log").read_text()

    log.write_text("one\n")
    assert copied() == "one\n"
    with log.open("a") as file:
        file.write("two\n")
    assert copied() == "one\ntwo\n"
    log.write_text("3\n")
    assert copied() == "3\n"
    assert outgoing.look() == ()
    outgoing.again()
    assert copied() == "3\n"


@pytest.mark.parametrize("path", ["../x/logs/rank-0.log", "/etc/passwd", "demo/run/agent.json", "demo/logs/../../x"])
def test_a_node_writes_no_other_file_of_the_controllers_host(tmp_path: Path, path: str) -> None:
    put(tmp_path / "pods", FilePart(path, 0, b"x"))
    assert not list(tmp_path.rglob("*"))


def test_neighbours_share_a_host_and_no_host_has_two_more_than_another() -> None:
    assert shares(4, 2) == [[0, 1], [2, 3]]
    for hosts in range(1, 9):
        for nodes in range(hosts, 40):
            found = shares(nodes, hosts)
            assert [*itertools.chain(*found)] == list(range(nodes))
            assert max(map(len, found)) - min(map(len, found)) <= 1


@pytest.mark.parametrize("options", [{"nodes": "3"}, {"Bad": "x"}, {"time": "1\n#SBATCH --wrap=x"}])
def test_options_of_sbatch_cannot_be_others_than_their_names_say(options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="--slurm"):
        checked_options(options)
