"""The api writes what the other programs read: the trainer's config, its exit codes, the agent's environment."""

import json
from pathlib import Path

from torchyard.api.exit_codes import EXIT_REASONS, ExitCode, reason_of_exit
from torchyard.api.launch import agent_env, trainer_config
from torchyard.api.reasons import Reason
from torchyard.api.resource import read_job
from torchyard.api.values import BUILT_IN, WITH_TRANSFORMERS
from torchyard.cli import errors
from torchyard_agent.exit_codes import ExitCode as AgentExitCode
from torchyard_trainers import registry
from torchyard_trainers.core.config import load
from torchyard_trainers.core.exits import Exit

ROOT = Path(__file__).parents[2]


def job(**spec):
    return read_job({"metadata": {"name": "x"}, "spec": {"trainer": {"name": "cvrp"}, **spec}})


def test_a_trainer_reads_the_config_of_the_smallest_and_of_a_full_job(tmp_path):
    full = {
        "device": "cpu",
        "parallelism": {
            "strategy": "fsdp",
            "precision": "bf16",
            "globalBatchSize": 8,
            "microBatchSize": 2,
            "fsdp": {"sharding": "full", "reshardAfterForward": False},
        },
        "checkpoint": {"interval": {"seconds": 300}, "keepLast": 1, "onPreempt": False, "volume": {"claim": "runs"}},
        "logging": {"tensorboard": False, "mlflow": False},
        "health": {"stall": "5m"},
        "evaluation": {"everySteps": 50},
        "export": {"formats": ["onnx", "web"], "verify": False},
        "preflight": {},
    }
    for spec in ({}, full):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(trainer_config(job(**spec), str)))
        assert load(path).trainer.name == "cvrp"


def test_what_may_be_named_is_there():
    assert set(BUILT_IN) == set(registry.WORKLOADS)
    assert WITH_TRANSFORMERS == registry.WITH_TRANSFORMERS


def test_operator_agent_trainers_and_command_line_have_the_same_exit_codes():
    """Three programs that share no code, and a command line that starts without the table's imports."""
    known = {code.name: code.value for code in ExitCode}
    assert {code.name: code.value for code in AgentExitCode} == known
    assert {code.name: code.value for code in Exit}.items() <= known.items()
    line = (errors.SUCCEEDED, errors.FAILED, errors.INVALID, errors.STOPPED, errors.INTERRUPTED)
    assert line == tuple(known[name] for name in ("DONE", "USER_ERROR", "CONFIG", "PREEMPTED", "INTERRUPTED"))
    assert set(ExitCode) == set(EXIT_REASONS)
    assert all(reason_of_exit(int(code), classified=True) in set(Reason) for code in ExitCode)


def test_the_agent_knows_every_setting_it_is_given():
    known = "".join(path.read_text() for path in (ROOT / "agent/torchyard_agent").rglob("*.py"))
    env = agent_env(job(preload=["numpy"], metrics={"patterns": ["(?P<loss>.)"]}).spec)
    assert [name for name in env if name not in known] == []
