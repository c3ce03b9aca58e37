"""Jobs in states that were recorded from real runs, for views that need no run."""

from typing import Any

from torchyard.api.resource import TrainingJob, read_job
from torchyard.client.ranks import Rank
from torchyard.local.run import Event

NOW = 1_795_244_400.0  # 2026-11-21T07:00:00Z
START = "2026-11-21T06:55:50Z"


def job(state: str, **status: Any) -> TrainingJob:
    """A two-node CVRP job in that state."""
    return read_job(
        {
            "apiVersion": "torchyard.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": "cvrp", "uid": "u-1", "creationTimestamp": START},
            "spec": {"trainer": {"name": "cvrp"}, "nodes": 2},
            "status": {"state": state, "startTime": START, "nodes": {"desired": 2, "ready": 2, "lost": 0}, **status},
        }
    )


RUNNING = job(
    "Running",
    round=2,
    message="Round 2 is training.",
    restarts={"total": 1, "counted": 0, "noProgress": 0},
    progress={"step": 120, "totalSteps": 1000, "percent": 12.0, "etaSeconds": 250, "phase": "step"},
    metrics={"loss": 1.93, "cost": 5.21, "costSavings": 5.62, "gapSavingsPercent": -7.3},
    throughput={"stepsPerSecond": 3.1, "samplesPerSecond": 1587.2},
    checkpoint={
        "step": 100,
        "time": "2026-11-21T06:59:30Z",
        "path": "step-00000100",
        "bytes": 2621440,
        "stepsAtRisk": 20,
    },
    attempts=[
        {
            "round": 1,
            "startTime": START,
            "endTime": "2026-11-21T06:57:00Z",
            "reason": "WorkerFailed",
            "cause": {
                "rank": 1,
                "pod": "cvrp-0-1",
                "node": "local-1",
                "exitCode": 137,
                "class": "Killed",
                "exception": "",
                "lines": ["step 50 \x1b[31mloss\x1b[0m 2.1"],
            },
            "endStep": 55,
            "stepsGained": 50,
        },
        {"round": 2, "startTime": "2026-11-21T06:57:01Z", "startStep": 50, "endStep": 120},
    ],
)
PENDING = job(
    "Pending", reason="InsufficientGPU", message="need 16 GPUs, this machine has 0: lower `spec.gpusPerNode`."
)
FAILED = job(
    "Failed",
    round=3,
    reason="NoProgress",
    message="3 rounds in a row made no progress: RuntimeError at step 7 on rank 0.",
    completionTime="2026-11-21T06:59:50Z",
    restarts={"total": 2, "counted": 2, "noProgress": 3},
    progress={"step": 7, "totalSteps": 100, "percent": 7.0},
    attempts=[
        {
            "round": 3,
            "startTime": "2026-11-21T06:59:40Z",
            "endTime": "2026-11-21T06:59:50Z",
            "reason": "WorkerFailed",
            "cause": {
                "rank": 0,
                "pod": "cvrp-0-0",
                "node": "local-0",
                "exitCode": 1,
                "class": "UserException",
                "exception": "RuntimeError: step 7 always fails",
                "lines": ["Traceback (most recent call last):", "RuntimeError: step 7 always fails"],
            },
            "counted": True,
            "endStep": 7,
        }
    ],
)
SUCCEEDED = job(
    "Succeeded",
    round=1,
    message="All ranks finished.",
    completionTime="2026-11-21T06:59:50Z",
    progress={"step": 1000, "totalSteps": 1000, "percent": 100.0},
    metrics={"loss": 0.41, "cost": 4.87},
    throughput={"stepsPerSecond": 8.25},
)
RANKS = (
    Rank(0, "cvrp-0-0", "local-0", "step", 120, 0, NOW - 1),
    Rank(1, "cvrp-0-1", "local-1", "step", 118, 2, NOW - 45),
)
EVENTS = [
    Event(START, "Normal", "RoundOpened", "Round 1 opened with 2 members."),
    Event("2026-11-21T06:57:00Z", "Warning", "WorkerFailed", "Rank 1 on cvrp-0-1 was killed\x1b[2J (exit 137)."),
    Event("2026-11-21T06:57:01Z", "Normal", "RoundOpened", "Round 2 opened with 2 members."),
]
LOSSES = [(step, 3.0 - step / 100) for step in range(0, 121, 5)]
