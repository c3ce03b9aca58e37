"""A round whose GPUs cannot be used does not start, and says what is missing. Situation -> message."""

from types import SimpleNamespace

import pytest

from torchyard_agent.workers import gpu_check


def torch_of(cuda="12.8", *, devices=2, trouble=""):
    def init():
        if trouble:
            raise RuntimeError(trouble)

    return SimpleNamespace(
        __version__="2.13.0" + ("+cpu" if cuda is None else ""),
        version=SimpleNamespace(cuda=cuda, hip=None),
        cuda=SimpleNamespace(init=init, device_count=lambda: devices),
    )


def devices(folder, *names):
    for name in names:
        (folder / name).touch()
    return folder


OLD_DRIVER = "The NVIDIA driver on your system is too old (found version 11040)"


@pytest.mark.parametrize(
    ("torch", "present", "env", "missing"),
    [
        (torch_of(), ("nvidiactl", "nvidia0", "nvidia1"), {}, None),
        (torch_of(), ("dxg",), {}, None),  # WSL has no /dev/nvidia0
        (torch_of(cuda=None), ("nvidiactl", "nvidia0"), {}, "torch 2.13.0+cpu is built without CUDA"),
        (torch_of(), (), {}, "the NVIDIA driver is not loaded"),
        (torch_of(), ("nvidiactl",), {}, "the driver shows no device"),
        (torch_of(), ("nvidia0",), {"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES is ``, which hides every GPU"),
        (torch_of(), ("nvidia0",), {"CUDA_VISIBLE_DEVICES": "-1"}, "CUDA_VISIBLE_DEVICES is `-1`"),
        (torch_of(trouble=OLD_DRIVER), ("nvidia0",), {}, f"CUDA cannot be initialized: {OLD_DRIVER}"),
        (torch_of(devices=0), ("nvidia0",), {}, "CUDA cannot be initialized: torch finds no device"),
        (torch_of(devices=1), ("nvidia0",), {}, "torch sees 1 of them"),
        (torch_of(devices=1), ("nvidia0",), {"NVIDIA_VISIBLE_DEVICES": "MIG-a,MIG-b"}, None),
    ],
)
def test_what_is_missing(tmp_path, torch, present, env, missing):
    found = gpu_check.missing_for_torch(2, env, torch, devices(tmp_path, *present))
    if missing is None:
        assert found is None
    else:
        assert found.startswith(missing)


def test_a_driver_that_crashes_the_process_that_asks_it_is_not_usable(tmp_path):
    import os

    torch = torch_of()
    torch.cuda.init = lambda: os._exit(139)
    assert "crashed" in gpu_check.missing_for_torch(1, {}, torch, devices(tmp_path, "nvidia0"))


def test_a_driver_that_does_not_answer_is_given_up(tmp_path, monkeypatch):
    import select

    monkeypatch.setattr(gpu_check, "PROBE_SECONDS", 0.05)
    torch = torch_of()
    torch.cuda.init = lambda: select.select([], [], [])
    assert "did not answer" in gpu_check.missing_for_torch(1, {}, torch, devices(tmp_path, "nvidia0"))


def test_a_job_without_gpus_is_not_asked():
    assert gpu_check.check(0, torch_is_there=True) is None
