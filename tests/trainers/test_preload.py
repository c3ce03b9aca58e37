"""What is imported once on each node before workers are forked, so that no rank of a round imports it again."""

import json
import os
import subprocess
import sys

import pytest

from torchyard_trainers.preload import settings_of_job

FOUND = """
import json, os, sys
import torchyard_trainers.preload
names = ["transformers.modeling_utils", "torchyard_trainers.lm.task", "torch._inductor.compile_fx"]
names += ["torchyard_trainers.vla.task", "transformers.models.qwen3.modeling_qwen3"]
names += ["torch.nn.modules.linear_cross_entropy", "peft"]
found = [len(os.listdir("/proc/self/task")), *(name in sys.modules for name in names)]
codecache = sys.modules["torch._inductor.codecache"]
codecache.build_code_hash = None  # to hash the sources once more would fail
print(json.dumps([*found, len(codecache.torch_key()), "tensorboard" in sys.modules]))
"""


@pytest.mark.e2e
def test_what_the_job_needs_is_imported_and_no_thread_is_started(tmp_path):
    config = tmp_path / "config.json"
    trainer = {"name": "lm", "params": {"loraRank": 8}}
    config.write_text(json.dumps({"trainer": trainer, "parallelism": {"compile": True}}))
    env = {**os.environ, "TORCHYARD_CONFIG": str(config), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    env["TORCHYARD_POD_INDEX"] = "1"  # rank 0, which alone writes event files, is elsewhere
    done = subprocess.run([sys.executable, "-c", FOUND], env=env, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [1, *[True] * 7, 32, False]


@pytest.mark.parametrize(
    ("content", "settings"),
    [
        (None, ("", False, False)),
        ("{", ("", False, False)),
        ("[]", ("", False, False)),
        ("{}", ("", False, False)),
        ('{"trainer": null}', ("", False, False)),
        ('{"trainer": {"name": "vlm"}, "parallelism": 3}', ("", False, False)),
        ('{"trainer": {"name": "vlm"}, "parallelism": {"compile": false}}', ("vlm", False, False)),
        ('{"trainer": {"name": "my.module:Work"}, "parallelism": {"compile": true}}', ("my.module:Work", True, False)),
        ('{"trainer": {"name": "lm", "params": {"loraRank": 4}}}', ("lm", False, True)),
        ('{"trainer": {"name": "lm", "params": {"loraRank": null}}}', ("lm", False, False)),
        ('{"trainer": {"name": "lm", "params": 3}}', ("", False, False)),
    ],
)
def test_a_config_that_cannot_be_read_is_left_to_the_workers(tmp_path, monkeypatch, content, settings):
    file = tmp_path / "config.json"
    monkeypatch.setenv("TORCHYARD_CONFIG", str(file))
    if content is not None:
        file.write_text(content)
    assert settings_of_job() == settings
    monkeypatch.delenv("TORCHYARD_CONFIG")
    assert settings_of_job() == ("", False, False)
