"""Report what a host has, as one line of JSON: sent to its Python on standard input, so it must run on Python 3.6.

    python3 - '{"torch": true, "gpus": 1, "modules": ["transformers"], "home": "~/.torchyard"}'

Only the standard library is imported, and torch where the job needs it. Nothing is written.
"""

import importlib
import importlib.util
import json
import os
import platform
import shutil
import site
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional

MARK = "torchyard-probe:"


def main() -> None:
    """Print the report that the first argument asks for."""
    wanted = json.loads(sys.argv[1])
    report: "Dict[str, Any]" = {
        "time": time.time(),
        "python": list(sys.version_info[:3]),
        "executable": sys.executable,
        "system": platform.system(),
        "machine": platform.machine(),
        "libc": _libc(),
        "name": platform.node(),
        "addresses": _addresses(),
        "home": _home(wanted["home"]),
        "search": _search(),
        "pythons": _pythons(),
        "uv": shutil.which("uv") or _existing("~/.local/bin/uv", "~/.cargo/bin/uv"),
        "torchrun": _torchrun(),
        "driver": _driver(),
        "missing": [name for name in wanted["modules"] if importlib.util.find_spec(name) is None],
    }
    if wanted["torch"]:
        report["torch"] = _torch(wanted["gpus"])
    print(MARK + json.dumps(report))


def _home(text: str) -> "Dict[str, Any]":
    path = os.path.abspath(os.path.expanduser(text))
    above = path
    while not os.path.exists(above):
        above = os.path.dirname(above)
    free = shutil.disk_usage(above).free
    return {"path": path, "writable": os.access(above, os.W_OK), "free": free}


def _libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or "musl"
    except (ValueError, OSError):
        return "musl"


def _search() -> "List[str]":
    folders = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    user = site.getusersitepackages() if site.ENABLE_USER_SITE else ""
    return folders + [user] * (bool(user) and os.path.isdir(user) and user not in folders)


def _pythons() -> "List[Any]":
    """Return the interpreters that could run a controller: path and version."""
    found: "List[Any]" = [[sys.executable, list(sys.version_info[:2])]]
    for minor in (13, 12, 11):
        path = shutil.which("python3.%d" % minor)
        if path is not None and _output([path, "-c", "import venv"]) is not None:
            found.append([path, [3, minor]])
    return found


def _torchrun() -> "Optional[str]":
    beside = os.path.join(os.path.dirname(sys.executable), "torchrun")
    return beside if os.access(beside, os.X_OK) else shutil.which("torchrun")


def _driver() -> "List[str]":
    query = ["nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader"]
    printed = _output(query) if shutil.which("nvidia-smi") else None
    return [line.strip() for line in printed.splitlines() if line.strip()] if printed else []


def _torch(gpus: int) -> "Dict[str, Any]":
    try:
        torch = importlib.import_module("torch")
    except Exception as error:  # noqa: BLE001
        return {"error": "%s: %s" % (type(error).__name__, error)}
    report: "Dict[str, Any]" = {"version": torch.__version__, "cuda": torch.version.cuda or "", "gpus": [], "error": ""}
    if gpus:
        try:
            for index in range(torch.cuda.device_count()):
                ones = torch.ones(64, 64, device="cuda:%d" % index)
                assert float((ones @ ones)[0, 0]) == 64.0
                report["gpus"].append(torch.cuda.get_device_name(index))
        except Exception as error:  # noqa: BLE001
            report["error"] = "GPU %d: %s" % (len(report["gpus"]), str(error).splitlines()[0][:200])
    return report


def _addresses() -> "List[str]":
    printed = _output(["hostname", "-I"]) or ""
    return [word for word in printed.split() if not word.startswith(("127.", "::1", "fe80"))][:8]


def _existing(*paths: str) -> "Optional[str]":
    expanded = [os.path.expanduser(path) for path in paths]
    return next((path for path in expanded if os.access(path, os.X_OK)), None)


def _output(command: "List[str]") -> "Optional[str]":
    try:
        return subprocess.check_output(command, stderr=subprocess.DEVNULL, timeout=30).decode(errors="replace")
    except (OSError, subprocess.SubprocessError):
        return None


if __name__ == "__main__":
    main()
