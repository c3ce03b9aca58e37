"""What images install is what was tested: every lock is a part of requirements.lock, digests included."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WANTED = {
    "operator": [
        *PROJECT["dependencies"],
        *PROJECT["optional-dependencies"]["operator"],
        *PROJECT["optional-dependencies"]["sweep"],
    ],
    "trainer": [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["trainers"]],
    "build": (ROOT / "images/build.in").read_text().partition("\n")[2].split(),
}
TORCH = {"torch", "transformers", "scipy", "triton", "nvidia-nccl-cu13"}


def pins(path):
    """Name: version and digests of a lock."""
    text = path.read_text().replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition("==")
        version, *options = re.split(r"\s+", rest.strip())
        digests = frozenset(option.removeprefix("--hash=") for option in options if option.startswith("--hash="))
        found[name.strip()] = (version, digests)
    return found


LOCKS = {name: pins(ROOT / f"images/{name}.lock") for name in WANTED}
TESTED = pins(ROOT / "requirements.lock")


@pytest.mark.parametrize("image", WANTED)
def test_every_package_is_the_tested_one_by_digest(image):
    assert all(digests for _, digests in LOCKS[image].values())
    different = {name: pin for name, pin in LOCKS[image].items() if TESTED.get(name) != pin}
    assert not different, "run: make lock"


@pytest.mark.parametrize("image", WANTED)
def test_everything_asked_for_is_locked(image):
    for requirement in map(Requirement, WANTED[image]):
        version, _ = LOCKS[image][requirement.name.lower()]
        assert version in requirement.specifier, "run: make lock"


def test_the_operator_is_without_torch():
    assert not TORCH & set(LOCKS["operator"])


def test_trainers_are_without_the_clients_of_kubernetes():
    assert not {"kopf", "kubernetes"} & set(LOCKS["trainer"])
