"""A job with volumes of a cluster runs on a machine with folders in their place."""

import pytest

from torchyard.api.local_volumes import with_folders, without_folder
from torchyard.api.resource import read_job

VOLUMES = [
    {"name": "data", "claim": "datasets", "mountPath": "/data", "readOnly": True},
    {"name": "raw", "claim": "raw", "mountPath": "/data/raw"},
    {"name": "conf", "configMap": "settings", "mountPath": "/etc/conf"},
    {"name": "key", "secret": "key", "mountPath": "/keys"},
]
FOLDERS = {"data": "/home/me/d", "raw": "/mnt/raw", "conf": "/home/me/conf", "key": "/home/me/k"}


def spec(**fields):
    return read_job({"metadata": {"name": "demo"}, "spec": {"volumes": VOLUMES, **fields}}).spec


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/data", "/home/me/d"),
        ("--data=/data/train", "--data=/home/me/d/train"),
        ("/data/raw/a:/data/b,/keys/id", "/mnt/raw/a:/home/me/d/b,/home/me/k/id"),
        ("cat /etc/conf/a.yaml '/data/x y'", "cat /home/me/conf/a.yaml '/home/me/d/x y'"),
        ("s3://data/x", "s3://data/x"),
        ("/data2", "/data2"),
        ("/mnt/data", "/mnt/data"),
        ("./data", "./data"),
        ("/data.csv", "/data.csv"),
    ],
)
def test_a_path_below_a_volume_is_one_below_its_folder(text, expected):
    assert with_folders(spec(command=["cat", text]), FOLDERS).command == ["cat", expected]


def test_every_text_that_names_a_folder_is_changed_and_nothing_of_volumes_that_stay():
    found = with_folders(
        spec(
            command=["torchrun", "train.py"],
            args=["--conf", "/etc/conf"],
            env=[{"name": "DATA", "value": "/data"}],
            workingDir="/data/work",
            code={"path": ".", "requirements": "requirements.txt", "wheels": "/data/wheels"},
        ),
        {"data": "/home/me/d"},
    )
    assert (found.args, found.env[0].value) == (["--conf", "/etc/conf"], "/home/me/d")
    assert (found.working_dir, found.code.wheels) == ("/home/me/d/work", "/home/me/d/wheels")
    assert [volume.name for volume in found.volumes] == ["raw", "conf", "key"]
    trained = spec(trainer={"name": "lm", "params": {"data": {"files": ["/data/a.txt"]}}})
    assert with_folders(trained, FOLDERS).trainer.params.decoded()["data"]["files"] == ["/home/me/d/a.txt"]


def test_volumes_without_a_folder_are_named_with_their_source():
    volumes = spec(command=["a"]).volumes
    assert without_folder([volumes[0], *volumes[2:]]) == (
        "this machine has no folder for the volumes data (claim datasets, at /data), conf (ConfigMap settings, at "
        "/etc/conf), key (Secret key, at /keys); --volume data=FOLDER names one"
    )
