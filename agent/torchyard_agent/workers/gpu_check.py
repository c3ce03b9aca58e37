"""Check whether the GPUs that a job requests can be used, and what is missing otherwise.

A program that falls back to the CPU would hold the GPUs of the job and finish late, without a word. So a round whose
GPUs cannot be used does not start. The zygote and the launcher never start CUDA: the driver is asked in a child
process.
"""

from __future__ import annotations

import json
import os
import select
import signal
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Tuple

PROBE_SECONDS = 120.0
_HIDDEN = ("", "-1", "NoDevFiles")
# Devices of GPUs that have no /dev/nvidia<N>: WSL, ROCm, Jetson.
_OTHER_DEVICES = ("dxg", "kfd", "nvhost-gpu", "nvgpu", "nvmap")


def missing_device(env: Mapping[str, str], dev: Path = Path("/dev")) -> Optional[str]:
    """Return why no program in this pod can use a GPU, without asking the driver; None if no reason is known.

    Args:
        env: of the workers.
        dev: folder of device files.
    """
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.split(",")[0].strip() in _HIDDEN:
        return f"CUDA_VISIBLE_DEVICES is `{visible}`, which hides every GPU. Remove it from spec.env or from the image"
    if any(dev.glob("nvidia[0-9]*")) or any((dev / name).exists() for name in _OTHER_DEVICES):
        return None
    driver = "the NVIDIA driver is not loaded" if not (dev / "nvidiactl").exists() else "the driver shows no device"
    return (
        f"{driver}: there is no {dev}/nvidia0. Check the driver of the node, the NVIDIA container runtime and the "
        f"device plugin"
    )


def missing_for_torch(asked: int, env: Mapping[str, str], torch: Any, dev: Path = Path("/dev")) -> Optional[str]:
    """Return why workers with this `torch` cannot use `asked` GPUs; None if they can."""
    version = torch.version
    if version.cuda is None and getattr(version, "hip", None) is None:
        return f"torch {torch.__version__} is built without CUDA. Install a CUDA build of torch in spec.image"
    found = missing_device(env, dev)
    if found is not None:
        return found
    count, trouble = _probe(torch)
    # Slices of one GPU are counted by the driver one process at a time.
    sliced = "MIG-" in env.get("CUDA_VISIBLE_DEVICES", "") + env.get("NVIDIA_VISIBLE_DEVICES", "")
    if count >= (1 if sliced else asked):
        return None
    if count == 0:
        return f"CUDA cannot be initialized: {trouble or 'torch finds no device'}. Check the driver of the node"
    return f"torch sees {count} of them. Check CUDA_VISIBLE_DEVICES and the device plugin of the node"


def sentence(asked: int, missing: str) -> str:
    """Return the message of a round that does not start: the request and what is missing."""
    return f"the job asks for {asked} GPU{'s' if asked > 1 else ''} in each pod, but {missing}"


def _probe(torch: Any) -> Tuple[int, str]:
    """Count devices in a child process; also return the error of CUDA if it does not start."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            os.write(write, json.dumps(_devices(torch)).encode())
        finally:
            os._exit(0)
    os.close(write)
    said = b""
    try:
        while select.select([read], [], [], PROBE_SECONDS)[0]:
            data = os.read(read, 65536)
            said += data
            if not data:
                break
        else:
            os.kill(pid, signal.SIGKILL)
            return 0, f"it did not answer within {PROBE_SECONDS:g} s"
    finally:
        os.close(read)
        os.waitpid(pid, 0)
    try:
        found: Dict[str, Any] = json.loads(said)
    except ValueError:
        return 0, "the process that asked it crashed"
    return int(found["count"]), str(found["trouble"])


def _devices(torch: Any) -> Dict[str, Any]:
    try:
        torch.cuda.init()
        return {"count": torch.cuda.device_count(), "trouble": ""}
    except Exception as error:  # noqa: BLE001 - RuntimeError, AssertionError, OSError: its text is the evidence
        return {"count": 0, "trouble": " ".join(str(error).split())[:300]}


def check(asked: int, *, torch_is_there: bool) -> Optional[str]:
    """Return the message of a round that must not start here; None if it may."""
    if asked < 1:
        return None
    if torch_is_there:
        import torch

        found = missing_for_torch(asked, os.environ, torch)
    else:
        found = missing_device(os.environ)
    return sentence(asked, found) if found is not None else None
