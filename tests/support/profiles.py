"""For each limit of a profile: a job that keeps it, and jobs that do not, as Python and the API server judge them."""

SMALL = {"resources": {"cpu": 1, "memory": "1Gi"}, "activeDeadline": "1h", "scheduling": {"queue": "research"}}
"""What a profile with every limit requires of a job."""

GIT = {"command": ["true"], "code": {"git": {"url": "https://git.example.com/team/a", "ref": "main"}}}
IMAGE = "registry.example.com/code/x@sha256:" + "0" * 64

LIMITED = {
    "nodes": ({"nodes": 4}, {"nodes": 4}, [{"nodes": 5}, {"nodes": 4, "spares": 1}]),
    "elastic nodes": (
        {"nodes": 4},
        {"nodes": 2, "elastic": {"minNodes": 1, "maxNodes": 4}},
        [{"nodes": 2, "elastic": {"minNodes": 1, "maxNodes": 5}}],
    ),
    "gpusPerNode": ({"gpusPerNode": 2}, {"gpusPerNode": 2}, [{"gpusPerNode": 3}]),
    "gpus": (
        {"gpus": 8},
        {"gpusPerNode": 4, "nodes": 2},
        [{"gpusPerNode": 3, "nodes": 3}, {"gpusPerNode": 4, "nodes": 2, "spares": 1}],
    ),
    "claimTemplates": (
        {"claimTemplates": ["gpu"]},
        {"resources": {"claims": [{"name": "a", "template": "gpu"}]}},
        [{"resources": {"claims": [{"name": "a", "template": "gpu"}, {"name": "b", "template": "all-gpus"}]}}],
    ),
    "cpu": ({"resources": {"cpu": 2}}, {"resources": {"cpu": "2000m"}}, [{"resources": {"cpu": "2001m"}}, {}]),
    "memory": (
        {"resources": {"memory": "64Gi"}},
        {"resources": {"memory": "65536Mi"}},
        [{"resources": {"memory": "70G"}}, {}],
    ),
    "disk": (
        {"resources": {"disk": "1Gi"}},
        {"resources": {"disk": "1Gi"}, "checkpoint": {"volume": {"ephemeral": "1Gi"}}},
        [{"resources": {"disk": "2Gi"}}, {"checkpoint": {"volume": {"ephemeral": "2Gi"}}}],
    ),
    "shm": (
        {"resources": {"shm": "1Gi"}},
        {"resources": {"shm": "1Gi"}},
        [{"resources": {"shm": "2Gi"}}],
    ),
    "activeDeadline": (
        {"activeDeadline": "24h"},
        {"activeDeadline": "1440m"},
        [{"activeDeadline": "24h1s"}, {}],
    ),
    "images": (
        {"images": ["registry.example.com/team/", "docker.io/pytorch/pytorch"]},
        {"image": "docker.io/pytorch/pytorch:2.9"},
        [
            {"image": "docker.io/pytorch/pytorch-evil:2.9"},
            {"image": "registry.example.com/team-x/a"},
            {"image": "elsewhere.example.com/registry.example.com/team/a"},
        ],
    ),
    "image of code": (
        {"images": ["registry.example.com/code/"]},
        {"command": ["true"], "code": {"image": IMAGE}},
        [{"command": ["true"], "code": {"image": IMAGE.replace("/code/", "/other/")}}],
    ),
    "queues": (
        {"queues": ["research", "small"]},
        {"scheduling": {"queue": "small"}},
        [{"scheduling": {"queue": "production"}}, {}],
    ),
    "priorityClasses": (
        {"priorityClasses": ["low"]},
        {"scheduling": {"priorityClass": "low"}},
        [{"scheduling": {"priorityClass": "high"}}],
    ),
    "workloadPriorityClasses": (
        {"workloadPriorityClasses": []},
        {},
        [{"scheduling": {"gang": "kueue", "queue": "research", "workloadPriorityClass": "high"}}],
    ),
    "taints": (
        {"taints": ["nvidia.com/gpu"]},
        {"scheduling": {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}},
        [
            {"scheduling": {"tolerations": [{"key": "dedicated", "operator": "Exists"}]}},
            {"scheduling": {"tolerations": [{"operator": "Exists"}]}},
        ],
    ),
    "nodeLabels": (
        {"nodeLabels": {"pool": "research"}},
        {"scheduling": {"nodeSelector": {"pool": "research", "zone": "a"}}},
        [{"scheduling": {"nodeSelector": {"pool": "production"}}}],
    ),
    "sources": (
        {"code": {"sources": ["git"]}},
        GIT,
        [
            {"script": "pass"},
            {"command": ["true"], "code": {"path": "."}},
            {"command": ["true"], "code": {"image": IMAGE}},
        ],
    ),
    "no sources": ({"code": {"sources": []}}, {"command": ["python", "train.py"]}, [{"script": "pass"}, GIT]),
    "repositories": (
        {"code": {"repositories": ["https://git.example.com/team/"]}},
        GIT,
        [
            {**GIT, "code": {"git": {"url": "https://git.example.com/other/a"}}},
            {**GIT, "code": {"git": {"url": "https://git.example.com/team/../other/a"}}},
            {**GIT, "code": {"git": {"url": "https://git.example.com/team/%2e%2e/other/a"}}},
        ],
    ),
    "requirements": (
        {"code": {"requirements": "forbidden"}},
        {"command": ["true"], "code": {"path": "."}},
        [{"command": ["true"], "code": {"path": ".", "requirements": "requirements.txt"}}],
    ),
}
"""By name: `limits` of a profile, what a job that keeps them says, and what jobs say that do not."""


def spec_of(said):
    """Return the spec of a job that says this, and has a program if it says none."""
    program = {} if {"command", "script", "trainer"} & said.keys() else {"command": ["true"]}
    return {**program, **said}
