"""An image's layers are linked into a node: the same files, in the order of the layers, and only those it lacks."""

import json
from pathlib import Path

import link
import pytest
from layout import chain_ids

DIGESTS = [f"sha256:{digit * 64}" for digit in "abc"]
CHAINS = chain_ids(DIGESTS)


class Containerd:
    """Snapshots of a node, as `ctr snapshots` shows them: a folder each under `var`."""

    def __init__(self, var: Path) -> None:
        self.var, self.committed, self.prepared = var, {}, {}

    def run(self, *argv):
        match [str(word) for word in argv]:
            case ["docker", "inspect", *_]:
                return json.dumps([{"Source": str(self.var), "Destination": "/var"}])
            case ["ctr", "snapshots", _, _, "ls"]:
                return "\n".join(self.committed)
            case ["ctr", "snapshots", _, _, "prepare", "--mounts", key, *parent]:
                assert set(parent) <= set(self.committed)
                self.prepared[key] = self.var / f"snapshots/{len(self.committed)}"
                self.prepared[key].mkdir(parents=True)
                inside = f"/var/{self.prepared[key].relative_to(self.var)}"
                options = [f"upperdir={inside}", "workdir=/var/work"] if parent else ["rbind", "rw"]
                return json.dumps([{"Type": "any", "Source": "overlay" if parent else inside, "Options": options}])
            case ["ctr", "snapshots", _, _, "commit", chain, key]:
                self.committed[chain] = self.prepared.pop(key)
                return ""
            case _:
                return REAL_RUN(*argv)


REAL_RUN = link.run


@pytest.fixture
def node(tmp_path, monkeypatch):
    made = Containerd(tmp_path / "var")
    monkeypatch.setattr(link, "run", made.run)
    monkeypatch.setattr(link, "succeeds", lambda *_argv: True)
    return made


@pytest.fixture
def image(tmp_path):
    folders = [tmp_path / f"layer-{number}" for number in range(3)]
    for number, folder in enumerate(folders):
        (folder / "opt").mkdir(parents=True)
        (folder / "opt/file").write_text(f"of layer {number}")
    return link.Unpacked(b"{}", tuple(zip(DIGESTS, folders, strict=True)))


@pytest.mark.parametrize("present", [0, 1, 3])
def test_a_node_gets_the_layers_it_lacks_and_shares_their_files(node, image, present):
    node.committed = dict.fromkeys(CHAINS[:present], Path("there"))
    link.into("node", ["ctr"], image)
    assert list(node.committed) == CHAINS
    for chain, (_, folder) in list(zip(CHAINS, image.layers, strict=True))[present:]:
        assert (node.committed[chain] / "opt/file").samefile(folder / "opt/file")


def test_what_cannot_be_linked_is_said_and_leaves_no_layer(node, image):
    gone = image._replace(layers=((DIGESTS[0], Path("/nowhere")), *image.layers[1:]))
    with pytest.raises(RuntimeError, match="/nowhere"):
        link.into("node", ["ctr"], gone)
    assert not node.committed
