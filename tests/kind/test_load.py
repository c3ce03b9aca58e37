"""Loading an image sends only the layers that a node lacks, in a layout that is whole all the same."""

import hashlib
import io
import json
import tarfile

import pytest
from layout import chain_ids, write_layout

IMAGE = "torchyard/operator:dev"
BASE, OURS = b"debian " * 4000, b"a change of ours"


def sha256(content):
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def docker_save(layers, *, links=()):
    """What `docker save` writes: a folder a layer, equal layers as links, the configuration, the manifest."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:

        def add(name, content):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))

        for number, layer in enumerate(layers):
            if number in links:
                entry = tarfile.TarInfo(f"{number}/layer.tar")
                entry.type, entry.linkname = tarfile.SYMTYPE, "../0/layer.tar"
                tar.addfile(entry)
            else:
                add(f"{number}/layer.tar", layer)
        config = json.dumps({"rootfs": {"type": "layers", "diff_ids": [sha256(layer) for layer in layers]}}).encode()
        add("abc.json", config)
        names = [f"{number}/layer.tar" for number in range(len(layers))]
        add("manifest.json", json.dumps([{"Config": "abc.json", "RepoTags": [IMAGE], "Layers": names}]).encode())
    archive.seek(0)
    return tarfile.open(fileobj=archive)


def layout(saved, present=frozenset()):
    out = io.BytesIO()
    sent = write_layout(saved, IMAGE, set(present), out)
    out.seek(0)
    with tarfile.open(fileobj=out) as tar:
        return {name: tar.extractfile(name).read() for name in tar.getnames()}, sent


def test_every_blob_has_the_digest_and_size_that_the_manifest_says():
    files, _ = layout(docker_save([BASE, OURS]))
    index = json.loads(files["index.json"])
    manifest = json.loads(files["blobs/" + index["manifests"][0]["digest"].replace(":", "/")])

    assert index["manifests"][0]["annotations"] == {"io.containerd.image.name": f"docker.io/{IMAGE}"}
    assert [layer["digest"] for layer in manifest["layers"]] == [sha256(BASE), sha256(OURS)]
    for described in [index["manifests"][0], manifest["config"], *manifest["layers"]]:
        blob = files["blobs/" + described["digest"].replace(":", "/")]
        assert (sha256(blob), len(blob)) == (described["digest"], described["size"])


def test_a_layer_that_the_node_has_is_named_but_not_sent():
    whole, all_of_it = layout(docker_save([BASE, OURS]))
    files, sent = layout(docker_save([BASE, OURS]), present={sha256(BASE)})

    assert set(whole) - set(files) == {f"blobs/{sha256(BASE).replace(':', '/')}"}
    assert files["index.json"] == whole["index.json"]
    assert sent < all_of_it - len(BASE) + 1024


@pytest.mark.parametrize("times", [2, 3])
def test_equal_layers_are_sent_once(times):
    files, _ = layout(docker_save([OURS] * times, links=range(1, times)))

    assert sum(content == OURS for content in files.values()) == 1


def test_a_layer_is_known_by_all_below_it():
    # The specification's own example: ChainID(A|B|C) = Digest(ChainID(A|B) + " " + C).
    below = sha256(b"sha256:a sha256:b")
    assert chain_ids(["sha256:a", "sha256:b", "sha256:c"]) == ["sha256:a", below, sha256(f"{below} sha256:c".encode())]
