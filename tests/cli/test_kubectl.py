"""`kubectl torchyard` is about the cluster, and kubectl's shell completion asks it for candidates."""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from aiohttp import web
from tests.cli.conftest import EXECUTABLE
from tests.support.cli.cluster import JOB, cluster

PLUGIN = str(Path(EXECUTABLE).with_name("kubectl-torchyard"))
COMPLETE = str(Path(EXECUTABLE).with_name("kubectl_complete-torchyard"))


async def one_job(request):
    if request.path.endswith("/trainingjobs/cvrp"):
        return web.json_response(JOB | {"status": {"state": "Running", "message": "in the cluster"}})
    return web.json_response({"metadata": {}, "items": [JOB]} if "trainingjobs" in request.path else {"items": []})


def output_of(torchyard, *command):
    done = subprocess.run(command, env=torchyard.env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_a_name_means_the_job_of_the_cluster_also_beside_a_run_of_that_name(torchyard):
    torchyard.record("cvrp", {"state": "Failed", "message": "on this machine"})
    async with cluster(torchyard, one_job):
        assert "on this machine" in output_of(torchyard, EXECUTABLE, "status", "cvrp")
        shown = await asyncio.to_thread(output_of, torchyard, PLUGIN, "status", "cvrp")
    assert "in the cluster" in shown


async def test_candidates_are_jobs_of_the_cluster(torchyard):
    torchyard.record("local")
    async with cluster(torchyard, one_job):
        assert await asyncio.to_thread(output_of, torchyard, COMPLETE, "status", "") == "cvrp\n:4\n"
        asked = await asyncio.to_thread(output_of, torchyard, EXECUTABLE, "__complete", "logs", "-n", "team", "")
    assert asked == "cvrp\n"
    # No cluster, no candidates, and no message in the middle of a command line.
    assert output_of(torchyard, COMPLETE, "status", "") == ":0\n"


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on PATH")
def test_kubectl_finds_the_plugin_and_its_candidates(torchyard):
    torchyard.env["PATH"] = f"{Path(PLUGIN).parent}{os.pathsep}{torchyard.env['PATH']}"
    assert output_of(torchyard, "kubectl", "torchyard", "version").strip() in output_of(
        torchyard, EXECUTABLE, "version"
    )
    assert "status" in output_of(torchyard, "kubectl", "__complete", "torchyard", "stat").splitlines()
