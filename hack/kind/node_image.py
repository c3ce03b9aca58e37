"""A kind node image for machines that can pull none, made of Debian packages and programs compiled from Go modules."""

import io
import json
import re
import shutil
import tarfile
import tempfile
import time
from pathlib import Path

from binaries import KUBE_PROGRAMS, KUBERNETES, NODE, TOOLS, kind_module, programs
from cache import HERE, KIND, digest
from shell import Unavailable, install_debian, pipe, run, say, step, succeeds

SUITE = "bookworm"
BASE_PACKAGES = ("ca-certificates",)


def stock() -> str:
    """The node image that our kind would pull by itself."""
    source = (kind_module() / "pkg/apis/config/defaults/image.go").read_text()
    return re.findall(r'Image = "([^"]+)"', source)[0]


def node_image() -> str:
    """A node image that is present: kind's own where it can be pulled, else one that we build."""
    own = f"torchyard/node:{_inputs()}"
    for image in (own, stock()):
        if present(image):
            return image
    with step(f"pulling {stock().partition('@')[0]}", usual="1 min, or no answer"):
        pulled = succeeds("docker", "pull", "--quiet", stock(), timeout=300)
    if pulled:
        return stock()
    say("no node image can be pulled here: building one; this once takes about 14 minutes on two cores")
    _build(own)
    return own


def base_image() -> str:
    """Debian without anything, as the base of images on machines that can pull none."""
    name = f"torchyard/base-debian:{digest(SUITE, *BASE_PACKAGES)}"
    if present(name):
        return name
    install_debian("debootstrap")
    with tempfile.TemporaryDirectory(dir=KIND) as folder, step(f"making {name}", usual="1 min"):
        root = Path(folder) / "root"
        try:
            run("debootstrap", "--variant=minbase", f"--include={','.join(BASE_PACKAGES)}", SUITE, root)
        except RuntimeError as error:
            raise Unavailable(f"no base image can be pulled, nor made from Debian packages: {error}") from error
        for leftover in ("var/cache/apt", "var/lib/apt/lists", "var/log"):
            shutil.rmtree(root / leftover)
            (root / leftover).mkdir()
        pipe(
            ["tar", "--numeric-owner", "--sort=name", "-C", str(root), "-c", "."],
            ["docker", "import", "--change", 'CMD ["bash"]', "-", name],
        )
    return name


def present(image: str) -> bool:
    """Whether Docker has an image of this name."""
    return succeeds("docker", "image", "inspect", image)


def _inputs() -> str:
    families = sorted({family.folder for family in (*NODE.values(), TOOLS["kubectl"], TOOLS["kind"])})
    sources = [HERE / "go" / folder for folder in families]
    return digest(HERE / "node", *sources, Path(__file__), HERE / "binaries.py", SUITE, KUBERNETES)


def _build(name: str) -> None:
    folders = {key: programs(family) for key, family in NODE.items()}
    folders["kubectl"] = programs(TOOLS["kubectl"])
    base = base_image()
    with tempfile.TemporaryDirectory(dir=KIND) as folder:
        context = Path(folder)
        with step("building the node's file system", usual="1 min"):
            _lay_out(context / "rootfs", folders)
            shutil.copy(HERE / "node" / "Dockerfile", context)
            _docker_build(context, f"{name}-base", base)
        with step("building the control plane's images", usual="1 min"):
            images = _control_plane(context / "images", folders, base, f"{name}-base")
        with step("putting them into the node image", usual="1 min"):
            _preload(images, f"{name}-base", name)
    older = run("docker", "images", "--format", "{{.Repository}}:{{.Tag}}", "torchyard/node").split()
    for image in set(older) - {name, f"{name}-base"}:
        # One that a cluster runs on is kept by Docker until the next time.
        succeeds("docker", "rmi", image)


def _lay_out(root: Path, folders: dict[str, Path]) -> None:
    """Everything of the node's file system that no Debian package brings."""
    module = kind_module()
    shutil.copytree(module / "images/base/files", root, copy_function=shutil.copyfile)
    for path in root.rglob("*"):
        executable = path.is_dir() or path.parent.name == "bin"
        path.chmod(0o755 if executable else 0o644)
    _copy(folders["containerd"], root / "usr/local/bin")
    _copy(folders["runc"], root / "usr/local/sbin")
    _copy(folders["kubectl"], root / "usr/bin")
    _copy(folders["kubernetes"], root / "usr/bin", "kubeadm", "kubelet")
    (root / "kind/version").write_text(KUBERNETES)
    manifests = root / "kind/manifests"
    manifests.mkdir()
    network = (HERE / "node/pod-network.yaml").read_text()
    (manifests / "default-cni.yaml").write_text(network.replace("@KUBERNETES@", KUBERNETES))
    (manifests / "default-storage.yaml").write_text(_storage(module)[0])


def _storage(module: Path) -> tuple[str, str, str]:
    """The storage manifest that kind ships, and the names of its two images: the provisioner's and its helper's."""
    source = (module / "pkg/build/nodeimage/const_storage.go").read_text()
    names = dict(re.findall(r'^const (\w+) = "([^"]+)"', source, re.MULTILINE))
    manifest = source.partition("const defaultStorageManifest = `")[2].rpartition("`")[0]
    manifest = re.sub(r"` \+ (\w+) \+ `", lambda match: names[match[1]], manifest)
    return manifest, names["storageProvisionerImage"], names["storageHelperImage"]


def _copy(source: Path, target: Path, *names: str) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in names or [path.name for path in source.iterdir()]:
        shutil.copy(source / name, target / name)


def _control_plane(context: Path, folders: dict[str, Path], base: str, node: str) -> list[str]:
    """Make every image that kubeadm, containerd and kind's manifests name; return the names."""
    kubeadm = ("docker", "run", "--rm", "--network", "none", "--entrypoint", "kubeadm", node)
    listed = run(*kubeadm, "config", "images", "list", "--kubernetes-version", KUBERNETES).split()
    wanted = {name.rpartition(":")[0].rpartition("/")[2]: name for name in listed}
    config = (kind_module() / "images/base/files/etc/containerd/config.toml").read_text()
    wanted["pause"] = re.findall(r'sandbox_image = "([^"]+)"', config)[0]
    _, provisioner, helper = _storage(kind_module())

    for program in set(KUBE_PROGRAMS) & set(wanted) - {"kube-proxy"}:
        _program_image(wanted[program], folders["kubernetes"] / program, program)
    _program_image(wanted["etcd"], folders["etcd"] / "server", "etcd")
    _program_image(wanted["coredns"], folders["coredns"] / "coredns", "coredns")
    _program_image(wanted["pause"], folders["pause"] / "pause", "pause")
    _program_image(provisioner, folders["storage"] / "local-path-provisioner", "local-path-provisioner")
    run("docker", "tag", base, helper)
    _copy(folders["kubernetes"], context, "kube-proxy")
    _copy(folders["kubectl"], context)
    _copy(HERE / "node", context, "pod-network.sh")
    shutil.copy(HERE / "node/proxy.Dockerfile", context / "Dockerfile")
    _docker_build(context, wanted["kube-proxy"], base)
    return [*wanted.values(), provisioner, helper]


def _program_image(name: str, program: Path, called: str) -> None:
    """An image that holds one static program, which is its entrypoint."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tar.gettarinfo(program, arcname=f"usr/local/bin/{called}")
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mode, entry.mtime = 0o755, 0
        with program.open("rb") as content:
            tar.addfile(entry, content)
    with tempfile.NamedTemporaryFile(dir=KIND) as file:
        file.write(archive.getbuffer())
        file.flush()
        entrypoint = json.dumps([f"/usr/local/bin/{called}"])
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        changes = ("--change", f"ENTRYPOINT {entrypoint}", "--change", f"ENV PATH={path}")
        run("docker", "import", *changes, file.name, name)


def _docker_build(context: Path, name: str, base: str) -> None:
    argv = ["--network", "host", "--build-arg", f"BASE_IMAGE={base}", "--tag", name, context]
    run("docker", "build", "--quiet", *argv, env={"DOCKER_BUILDKIT": "0"})


def _preload(images: list[str], node: str, name: str) -> None:
    """Import images into a node's containerd, as `kind build node-image` does, and commit the node under its name."""
    options = ("--detach", "--network", "none", "--security-opt", "seccomp=unconfined", "--entrypoint", "sleep")
    container = run("docker", "run", *options, node, "infinity").strip()
    try:
        run("docker", "exec", "--detach", container, "containerd")
        ctr = ["docker", "exec", "-i", container, "ctr", "--namespace=k8s.io", "--connect-timeout=60s"]
        # ctr waits for an answer but not for the socket, which a busy machine makes seconds later.
        deadline = time.monotonic() + 60
        while not succeeds(*ctr, "version", timeout=90) and time.monotonic() < deadline:
            time.sleep(0.2)
        run(*ctr, "version")  # tells why, where it never did
        pipe(
            ["docker", "save", *images], [*ctr, "images", "import", "--all-platforms", "--no-unpack", "--digests", "-"]
        )
        run("docker", "exec", container, "pkill", "--exact", "containerd")
        run("docker", "exec", container, "rm", "-rf", "/run/containerd", "/var/lib/containerd/tmpmounts")
        entrypoint = 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]'
        run("docker", "commit", "--change", entrypoint, "--change", "CMD []", container, name)
    finally:
        run("docker", "rm", "--force", "--volumes", container)
