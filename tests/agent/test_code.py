"""The code of a round: verified by its digest each time, entered as the working directory, never something else."""

import pytest

from torchyard.client.bundle.archive import parts
from torchyard.client.bundle.bundle import bundle_of

pytestmark = pytest.mark.e2e


@pytest.fixture
def send(tmp_path):
    """Put a folder with one module where an agent finds it; return the code of a round."""

    def send(text, place="mounted"):
        folder = tmp_path / "project"
        (folder / "src").mkdir(parents=True, exist_ok=True)
        (folder / "src" / "said.py").write_text(f"print({text!r})")
        bundle = bundle_of(folder)
        (arrived := tmp_path / place).mkdir(parents=True)
        for number, part in enumerate(parts(bundle.archived())):
            (arrived / f"part-{number:04}").write_bytes(part)
        return {"digest": bundle.digest}

    return send


def ran(one, code):
    one.run(code=code)
    return one.ended()["code"], one.log()


def test_a_round_never_runs_other_code_than_its_job_names(pod, send, tmp_path):
    folders = {"TORCHYARD_CODE_ROOT": str(tmp_path / "code"), "TORCHYARD_CODE_MOUNT": str(tmp_path / "mounted")}
    one = pod("python3", "said.py", TORCHYARD_WORKING_DIR="src", **folders)
    one.ready()
    first = send("a")
    assert ran(one, first) == (0, "a\n")
    module = tmp_path / "code" / first["digest"] / "src" / "said.py"
    module.chmod(0o644)
    module.write_text("print('b')")
    assert ran(one, first) == (0, "a\n"), "code that was edited in the pod is unpacked again"
    second = send("c", f"code/parts/{'0' * 64}")
    one.run(code=second)
    ended = one.ended()
    assert (ended["code"], ended["failure"]["message"]) == (
        71,
        f"the code that arrived has digest {first['digest'][:12]}, and the job names {second['digest'][:12]}",
    )
    third = send("d", "pushed")
    (tmp_path / "code/parts").mkdir(exist_ok=True)
    (tmp_path / "pushed").rename(tmp_path / "code/parts" / third["digest"])
    assert ran(one, third) == (0, "d\n"), "what was pushed into the running pod is used first"
    assert not module.exists()
