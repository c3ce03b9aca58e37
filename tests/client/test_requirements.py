"""Requirements are resolved at submission into a lock that travels with the code: wheels with digests, nothing else."""

import pytest
from tests.agent.test_requirements import DIGEST, wheel

from torchyard.api.spec import TrainingJobSpec
from torchyard.api.spec_code import Code
from torchyard.client.bundle.bundle import bundle_of
from torchyard.client.bundle.contents import CodeFile
from torchyard.client.errors import TorchYardError
from torchyard.client.requirements import resolve
from torchyard.client.requirements.declared import declared
from torchyard.client.requirements.lockfile import LOCK, is_kept, pins
from torchyard.client.requirements.target import Target, markers_of, of_image, of_trainer_image
from torchyard_agent.requirements import lock as agents

TARGET = Target(["--python-version", "3.12", "--python-platform", "linux"], markers_of("3.12", "x86_64"), {})


@pytest.fixture
def lock(tmp_path, monkeypatch):
    """Write files, and resolve requirements from wheels of the folder alone; return the text of the lock."""
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    folder = tmp_path / "code"
    (folder / "wheels").mkdir(parents=True)
    wheel(folder / "wheels", "ty_one", ["ty_two"])
    wheel(folder / "wheels", "ty_two")

    def lock(files, requirements="requirements.txt", target=TARGET, **more):
        for name, text in files.items():
            (folder / name).write_text(text)
        code = Code(path=".", requirements=requirements, wheels="wheels")
        return resolve.locked(TrainingJobSpec(code=code, **more), folder, target, lambda _sentence: None)

    return lock


def test_a_lock_has_every_package_with_its_digest_and_the_agent_reads_the_same(lock):
    text = lock({"requirements.txt": "ty_one\n"})
    assert [(pin.name, pin.version) for pin in pins(text)] == [("ty-one", "1.0"), ("ty-two", "1.0")]
    read = agents.read(text)
    assert [tuple(pin) for pin in read.pins] == [tuple(pin) for pin in pins(text)]
    assert agents.LOCK == LOCK


def test_the_same_requirements_have_the_same_lock_and_others_another(lock, tmp_path):
    files = {"requirements.txt": "ty_two\n"}
    first = lock(files)
    (kept,) = (tmp_path / "home" / "locks").iterdir()
    kept.write_text(first + "# kept\n")
    assert lock(files).endswith("# kept\n"), "an index that has newer versions changes nothing"
    assert "ty-one" in lock({"requirements.txt": "-r other.txt\n", "other.txt": "ty_one\n"})


def test_the_block_of_a_script_is_resolved(lock):
    script = '# /// script\n# dependencies = ["ty_two", "ty_none"]\n# ///\n'
    with pytest.raises(TorchYardError, match="ty-none"):
        lock({"train.py": script}, "script", command=["torchrun", "train.py"])
    text = lock({"train.py": script.replace(', "ty_none"', "")}, "script", command=["torchrun", "train.py"])
    assert [pin.name for pin in pins(text)] == ["ty-two"]
    with pytest.raises(TorchYardError, match="has no block of dependencies"):
        lock({"train.py": ""}, "script", command=["torchrun", "train.py"])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ty_none\n", "ty-none"),
        ("--extra-index-url https://me:secret@host/simple\nty_two\n", "the index host has credentials"),
        ("-e ./lib\n", "lib"),
    ],
)
def test_what_cannot_travel_is_named_before_anything_is_sent(lock, text, sentence):
    with pytest.raises(TorchYardError, match=sentence) as error:
        lock({"requirements.txt": text})
    assert "secret" not in str(error.value)


def test_torch_of_the_image_wins_and_a_conflict_names_both_versions(lock):
    have = TARGET._replace(installed={"ty_two": "0.9", "numpy": "2.4.6"})
    with pytest.raises(TorchYardError, match=r"numpy>=3 and numpy==2\.4\.6"):
        lock({"requirements.txt": "numpy>=3\n"}, target=have)


@pytest.mark.parametrize("installed", [{"numpy": "2.4.6+x", "Typing_Extensions": "4.1"}, {}])
def test_wheels_need_no_wheel_of_what_the_image_has(lock, tmp_path, installed):
    wheel(tmp_path / "code" / "wheels", "ty_numbers", ["numpy>=2", "ty_two"])
    text = lock({"requirements.txt": "ty_numbers\nnumpy>=1.2\n"}, target=TARGET._replace(installed=installed))
    assert [pin.name for pin in pins(text)] == ["ty-numbers", "ty-two"]
    assert agents.read(text).direct == ("numpy>=1.2",), "compared with the image before the first round"


def test_a_version_of_the_image_that_wheels_cannot_use_is_named(lock, tmp_path):
    wheel(tmp_path / "code" / "wheels", "ty_numbers", ["numpy>=3", "tqdm"])
    have = TARGET._replace(installed={"numpy": "2.4.6", "tqdm": "4.0"})
    with pytest.raises(TorchYardError, match=r"numpy>=3") as error:
        lock({"requirements.txt": "ty_numbers\n"}, target=have)
    assert "2.4.6" in str(error.value)


def test_what_the_user_requires_of_packages_of_an_image_travels_with_the_lock(tmp_path):
    (tmp_path / "a.txt").write_text("torch>=2.1 # comment\nnumpy<3\nother\n-i https://host/simple\n")
    spec = TrainingJobSpec(code=Code(path=".", requirements="a.txt"))
    found = declared(spec, tmp_path)
    assert (found.direct, found.options) == (["torch>=2.1", "numpy<3"], ["--index-url https://host/simple"])
    assert agents.read(f"#: torch>=2.1\n{found.options[0]}\n").options == ("--index-url https://host/simple",)


def test_the_default_image_is_known_and_another_is_not():
    known = of_image(TrainingJobSpec(code=Code(path=".")))
    assert known.installed == of_trainer_image()
    assert {name for name in known.installed if is_kept(name)} >= {"torch", "numpy", "triton"}
    other = of_image(TrainingJobSpec(image="a", code=Code(path=".", python="3.11", platform="linux/arm64")))
    assert (other.installed, other.shown) == ({}, "Python 3.11 on Linux aarch64")


def test_the_lock_is_a_part_of_the_digest(lock, tmp_path):
    file = CodeFile(LOCK, "0644", "file", f"a==1 {DIGEST}".encode())
    folder = tmp_path / "code"
    (folder / "train.py").write_text("")
    digests = {bundle_of(folder, each).digest for each in (None, file, file._replace(data=b""))}
    assert len(digests) == 3
