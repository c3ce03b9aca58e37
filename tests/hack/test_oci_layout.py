"""Images of a release: the same bytes whenever and wherever they were built, and what registries expect."""

import hashlib
import io
import json
import sys
import tarfile

import pytest
import zstandard
from tests.hack.test_release import release

layout, images = sys.modules["oci_layout"], sys.modules["release_images"]
EPOCH = 1_700_000_000
ORIGIN = images.Origin("1.2.3", "c" * 40, EPOCH)


def layer(time, owner):
    """A layer that Docker made at some time, on some machine."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in (
            ("old", b"of a package"),
            ("new", b"built"),
            ("var/cache/ldconfig/aux-cache", b"%f" % time),
        ):
            entry = tarfile.TarInfo(name)
            entry.size, entry.uid, entry.uname = len(content), 65532, owner
            entry.mtime = 1_600_000_000 if name == "old" else time
            entry.pax_headers = {"SCHILY.xattr.security.capability": "x", "atime": str(time)} if name == "new" else {}
            tar.addfile(entry, io.BytesIO(content))
        link = tarfile.TarInfo("hard")
        link.type, link.linkname, link.mtime = tarfile.LNKTYPE, "new", time
        tar.addfile(link)
    return out.getvalue()


def saved(time, owner="root"):
    """What `docker save` writes of an image with two layers, of which one is there twice."""
    config = {
        "architecture": "amd64",
        "os": "linux",
        "created": f"{time}",
        "container": owner,
        "config": {"Env": ["A=b"], "User": "65532", "Hostname": owner, "Image": owner},
        "rootfs": {"diff_ids": ["of", "docker", "itself"]},
        "history": [
            {"created": "2020-09-13T12:26:40.123456Z", "created_by": "a base"},
            {"created": images.moment(int(time)), "created_by": "COPY", "comment": owner},
            {"created": images.moment(int(time)), "created_by": "USER 65532", "empty_layer": True},
        ],
    }
    files = {
        "a/layer.tar": layer(time, owner),
        "c.json": json.dumps(config).encode(),
        "manifest.json": json.dumps([{"Config": "c.json", "Layers": ["a/layer.tar", "b/layer.tar"]}]).encode(),
    }
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        link = tarfile.TarInfo("b/layer.tar")
        link.type, link.linkname = tarfile.SYMTYPE, "../a/layer.tar"
        tar.addfile(link)
    out.seek(0)
    return tarfile.open(fileobj=out)


def written(folder, time, owner="root"):
    """The layout of such an image for two platforms."""
    target = layout.Layout(folder)
    manifests = images.image(saved(time, owner), target, ["linux/amd64", "linux/arm64"], ORIGIN, on_nothing=False)
    return target.finish(manifests, "1.2.3", ORIGIN.annotations())


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_image_has_the_same_bytes_whenever_and_wherever_it_was_built(tmp_path):
    digests = {
        written(tmp_path / "early", 1_650_000_000.25, "root"),
        written(tmp_path / "late", 1_790_000_000.75, "another"),
    }
    assert len(digests) == 1
    assert files(tmp_path / "early") == files(tmp_path / "late")


def test_a_layout_holds_what_a_registry_expects(tmp_path):
    digest = written(tmp_path, 1_750_000_000)
    blobs = {
        f"sha256:{name.rpartition('/')[2]}": content for name, content in files(tmp_path).items() if "blobs/" in name
    }
    assert all(f"sha256:{hashlib.sha256(content).hexdigest()}" == name for name, content in blobs.items())
    (root,) = json.loads((tmp_path / "index.json").read_text())["manifests"]
    assert root["digest"] == digest
    assert root["annotations"] == {"org.opencontainers.image.ref.name": "1.2.3"}
    index = json.loads(blobs[digest])
    assert [each["platform"]["architecture"] for each in index["manifests"]] == ["amd64", "arm64"]
    for each in index["manifests"]:
        manifest = json.loads(blobs[each["digest"]])
        assert each["size"] == len(blobs[each["digest"]])
        config = json.loads(blobs[manifest["config"]["digest"]])
        assert config["architecture"] == each["platform"]["architecture"]
        assert config["config"] == {"Env": ["A=b"], "User": "65532"}
        assert len([step for step in config["history"] if not step.get("empty_layer")]) == len(manifest["layers"]) == 2
        for described, diff_id in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True):
            plain = zstandard.ZstdDecompressor().stream_reader(blobs[described["digest"]]).read()
            assert f"sha256:{hashlib.sha256(plain).hexdigest()}" == diff_id
            with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
                assert {entry.name: int(entry.mtime) for entry in tar} == {
                    "old": 1_600_000_000,
                    "new": EPOCH,
                    "hard": EPOCH,
                }
                assert tar.getmember("hard").linkname == "new"
                assert tar.getmember("new").pax_headers == {"SCHILY.xattr.security.capability": "x"}
                assert tar.getmember("new").uid == 65532
                assert tar.extractfile("new").read() == b"built"


def test_images_are_chosen_by_name_and_those_of_another_machine_by_digest(monkeypatch):
    digest = f"sha256:{'a' * 64}"
    assert release.given_images(f"operator={digest},trainer={digest}") == {"operator": digest, "trainer": digest}
    assert release.given_images("") == {}
    for wrong in ("operator", "operator=latest", f"server={digest}"):
        with pytest.raises(ValueError, match="names no image by digest"):
            release.given_images(wrong)
    monkeypatch.setenv("TARGETS", "none")
    assert release.chosen_targets() == []
    monkeypatch.setenv("TARGETS", "operator,trainers")
    with pytest.raises(ValueError, match="trainers is no image; choose from operator, agent"):
        release.chosen_targets()
    plain = "image: ghcr.io/torchyard/operator:1.0.0\ntrainer: ghcr.io/torchyard/trainer:1.0.0\n"
    assert release.with_digests_of_plain(plain, "1.0.0", {"operator": digest}).splitlines() == [
        f"image: ghcr.io/torchyard/operator@{digest}",
        "trainer: ghcr.io/torchyard/trainer:1.0.0",
    ]
