"""The Python API in a real Jupyter kernel: a function of a cell runs, a name of the notebook alone is an error."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.waiting import DEADLINE

pytestmark = pytest.mark.e2e
PACKAGES = ("nbclient==0.11.0", "ipykernel==7.4.0")
CELLS = [
    "import math\nimport torchyard as ty",
    "@ty.job(launcher={'warmStart': False})\ndef train(steps, lr=0.1):\n    print('root', math.sqrt(steps), lr)",
    "job = ty.run(train, arguments={'steps': 16}, name='cell')\nfor line in job.logs():\n    print(line)",
    "print((await (await ty.aio.get_job('cell')).status()).state)",
    "seen = 3\n@ty.job()\ndef bad():\n    print(seen)\n",
    "try:\n    ty.run(bad)\nexcept ty.TorchYardError as error:\n    print(error)",
]
# Over TCP, Jupyter chooses ports before it binds them, and another test can take one in between; files are its alone.
PROGRAM = f"""
import jupyter_client, nbclient, nbformat
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in {CELLS!r}])
kernel = jupyter_client.AsyncKernelManager(kernel_name="python3", transport="ipc")
nbclient.NotebookClient(notebook, km=kernel, timeout={DEADLINE:.0f}).execute()
for cell in notebook.cells:
    for output in cell.outputs:
        print(output.get("text", output))
"""


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory):
    """Return the environment of a process that has Jupyter's client and kernel beside what the tests have."""
    site = tmp_path_factory.mktemp("site")
    uv = Path(sys.executable).with_name("uv")
    argv = [str(uv), "pip", "install", "--quiet", "--system-certs", "--target", str(site), *PACKAGES]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE, check=False)
    if done.returncode:
        pytest.skip(f"nbclient and ipykernel cannot be installed: {done.stderr.strip()[-200:]}")
    return {**os.environ, "PYTHONPATH": str(site), "IPYTHONDIR": str(site / "ipython")}


def test_a_notebook_runs_the_function_of_a_cell(jupyter, tmp_path):
    environment = {**jupyter, "TORCHYARD_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "[r0 cell-0-0] root 4.0 0.1" in done.stdout
    assert "Succeeded" in done.stdout
    assert "bad uses seen of the notebook, and only its own source travels; import or define that" in done.stdout
