"""The Dockerfile: pinned bases, no root user, and nothing in a build that it does not need."""

import re
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text()
# (base, name, body) of every stage.
STAGES = {
    name: (base, body)
    for base, name, body in re.findall(r"^FROM (\S+) AS (\S+)\n(.*?)(?=^FROM |\Z)", TEXT, re.MULTILINE | re.DOTALL)
}
SHIPPED = ("operator", "agent", "trainer-cpu", "trainer")


def test_the_images_of_the_project_are_there():
    assert set(SHIPPED) <= set(STAGES)


def test_every_base_is_a_stage_nothing_or_pinned_by_digest():
    for base, _ in STAGES.values():
        assert (
            base in STAGES or base == "scratch" or re.fullmatch(r"\$\{BASE_IMAGE:-\S+:\S+@sha256:[0-9a-f]{64}\}", base)
        )


def test_every_image_runs_as_an_unprivileged_user():
    for name in SHIPPED:
        base, body = STAGES[name]
        assert base == "scratch" or body.rindex("USER 65532:65532") > body.rindex("COPY")


def test_every_image_has_labels():
    for name in SHIPPED:
        for label in ("title", "description", "licenses", "version"):
            assert f"org.opencontainers.image.{label}=" in STAGES[name][1]


def test_what_downloads_is_never_shipped():
    """The certificates of the build machine and the tools of the build stay in stages that no image is made from."""

    def bases(name):
        return {name} | (bases(STAGES[name][0]) if STAGES[name][0] in STAGES else set())

    for name in SHIPPED:
        assert not any("build/ca.cr" in STAGES[stage][1] for stage in bases(name))


def test_our_own_files_come_last():
    """A change of ours re-loads one small layer."""
    for name in ("operator", "trainer-cpu", "trainer"):
        copies = re.findall(r"^COPY --from=(\S+) /image/", STAGES[name][1], re.MULTILINE)
        assert [copy.endswith("ours") for copy in copies] == [False, True]


def test_the_build_sees_only_what_it_copies():
    first, *rest = (ROOT / ".dockerignore").read_text().split()
    assert first == "*"
    allowed = [line.removeprefix("!") for line in rest if line.startswith("!")]
    for line in re.findall(r"^COPY (?!--from)(.*)$", TEXT, re.MULTILINE):
        for source in line.split()[:-1]:
            plain = source.replace("[t]", "t").rstrip("/")
            assert any(fnmatch(plain, pattern) for pattern in allowed), source
