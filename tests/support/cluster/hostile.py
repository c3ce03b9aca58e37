"""A hundred malformed or hostile objects: some the API server refuses, some it cannot, some have their status forged.

None may stop the operator or touch another job. No pod of theirs is placed: the nodes must not drown in them.
"""

import json
from typing import Any, NamedTuple

NOWHERE = {"nodeSelector": {"torchyard.dev/nowhere": "true"}}


class Hostile(NamedTuple):
    """One object.

    `body`: what is posted, raw bytes or a document; `status`: what its owner then writes into it; `refused`: by the API
    server.
    """

    name: str
    body: dict[str, Any] | bytes
    status: dict[str, Any] | None = None
    refused: bool = False


def objects(victim: dict[str, Any], victims_pods: list[str]) -> list[Hostile]:
    """All of them.

    Args:
        victim: a job of another user, in the same namespace.
        victims_pods: uids of its pods.
    """
    found = [*_malformed(), *_valid_but_mean(victim), *_forged(victim, victims_pods)]
    named = []
    for number, hostile in enumerate(found):
        body = hostile.body
        if isinstance(body, dict) and isinstance(body.get("metadata"), dict):
            body["metadata"].setdefault("name", f"hostile-{number}")
        named.append(hostile)
    return named


def _job(spec: Any = None, metadata: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "torchyard.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {} if metadata is None else metadata,
        "spec": {"script": "1", "scheduling": NOWHERE, **(spec or {})} if isinstance(spec, dict | None) else spec,
        **more,
    }


def _malformed() -> list[Hostile]:
    """What the API server refuses, or drops what it does not know of."""
    specs: dict[str, Any] = {
        "spec is null": None,
        "spec is a list": [],
        "spec is text": "spec",
        "no nodes": {"nodes": 0},
        "negative nodes": {"nodes": -1},
        "nodes beyond 32 bits": {"nodes": 2**31},
        "nodes beyond 64 bits": {"nodes": 2**63},
        "nodes as a float": {"nodes": 1.5},
        "a negative duration": {"activeDeadline": "-1h"},
        "an endless duration": {"activeDeadline": "99999999h"},
        "a duration in units of Go": {"gracePeriod": "1e3ms"},
        "a duration with a newline": {"gracePeriod": "60s\n"},
        "a negative quantity": {"resources": {"memory": "-1Gi"}},
        "a quantity with an exponent": {"resources": {"memory": "1e999"}},
        "a reserved variable": {"env": [{"name": "RANK", "value": "0"}]},
        "a variable with an equals sign": {"env": [{"name": "A=B", "value": "0"}]},
        "a variable twice": {"env": [{"name": "A"}, {"name": "A"}]},
        "a NUL in a script": {"script": "import os\0"},
        "a shell string": {"script": None, "command": ["sh -c 'rm -rf /'"]},
        "257 words": {"script": None, "command": ["x"] * 257},
        "a script that is too long": {"script": "#" * (60 * 1024 + 1)},
        "a script of too many bombs": {"script": "\U0001f4a3" * (16 * 1024)},
        "arguments that are too long": {"script": None, "command": ["x" * 16384] * 4},
        "variables that are too long": {"env": [{"name": f"V{number}", "value": "x" * 1000} for number in range(256)]},
        "a label key without end": {"scheduling": {"nodeSelector": {"x" * 100_000: "y"}}},
        "a pattern without a group": {"metrics": {"patterns": ["loss=[0-9]+"]}},
        "a long parameter": {"script": None, "trainer": {"name": "cvrp", "params": {"preset": "x" * 500_000}}},
        "many parameters": {"script": None, "trainer": {"name": "cvrp", "params": {f"p{n}": n for n in range(129)}}},
        "parameters of 100 levels": {"script": None, "trainer": {"name": "cvrp", "params": _nested(100)}},
        "two things to run": {"command": ["x"]},
        "nothing to run": {"script": None},
        "a mount over the agent": {"volumes": [{"name": "a", "mountPath": "/torchyard/bin", "claim": "a"}]},
        "a mount over everything": {"volumes": [{"name": "a", "mountPath": "/", "secret": "a"}]},
        "a secret of another namespace": {"envFrom": [{"secret": "kube-system/admin"}]},
        "a folder of the node": {"volumes": [{"name": "a", "mountPath": "/a", "hostPath": {"path": "/"}}]},
        "an elastic gang": {"elastic": {"minNodes": 1, "maxNodes": 4096}},
    }
    bodies = {name: _job(spec) if isinstance(spec, dict) else _job() | {"spec": spec} for name, spec in specs.items()}
    bodies |= {
        f"name: {what}": _job(metadata={"name": name})
        for what, name in {
            "capitals": "Hostile",
            "53 characters": "a" * 53,
            "253 characters": ".".join(["a" * 62] * 4),
            "unicode": "höstile",
            "a path": "../pods/x",
            "a newline": "a\nb",
            "a dot": "a.b",
        }.items()
    }
    named = _job(metadata={"name": "raw"})
    raw = {
        "not JSON": b"{",
        "not UTF-8": b'{"metadata": {"name": "\xff\xfe"}}',
        "an empty body": b"",
        "20,000 levels": json.dumps(named | {"spec": {"trainer": {"name": "cvrp", "params": "deep"}}})
        .replace('"deep"', '{"x":' * 20000 + "1" + "}" * 20000)
        .encode(),
        "another kind": json.dumps(named | {"kind": "Pod"}).encode(),
        "four megabytes": json.dumps(named | _job({"args": ["x" * 32768] * 128})).encode(),
    }
    return [Hostile(name, body, refused=True) for name, body in {**bodies, **raw}.items()]


def _valid_but_mean(victim: dict[str, Any]) -> list[Hostile]:
    """What the API server accepts: huge, odd, or meant for code that forgets to quote."""
    uid, name = victim["metadata"]["uid"], victim["metadata"]["name"]
    specs: dict[str, dict[str, Any]] = {
        "a raw pod": {"podTemplate": {"spec": {"hostNetwork": True}}, "podSpecPatch": "privileged: true"},
        "commands of a shell": {"script": None, "command": ["$(rm -rf /)", "`id`", "; reboot", "&& :", "$$(HOME)"]},
        "right to left": {"script": None, "command": ["\u202eexe.nohtyp", "\U0001f4a3", "a\r\nb", "\x1b[2J"]},
        "the longest script": {"script": "#" * (60 * 1024)},
        "a script of bombs": {"script": "\U0001f4a3" * (15 * 1024)},
        "many variables": {"env": [{"name": f"V{number}", "value": "x" * 100} for number in range(256)]},
        "a variable with everything": {"env": [{"name": "A", "value": "".join(map(chr, range(1, 256)))}]},
        "a regular expression that never ends": {"metrics": {"patterns": ["(?P<loss>(a+)+)+$"]}},
        "a regular expression that is none": {"metrics": {"patterns": ["(?P<loss>["]}},
        "a regular expression that repeats too much": {"metrics": {"patterns": ["(?P<loss>a{999999999999})"]}},
        "unknown parameters": {
            "script": None,
            "trainer": {"name": "cvrp", "params": {"__proto__": {"x": [None]}}},
        },
        "large parameters": {
            "script": None,
            "trainer": {"name": "a:B", "params": {f"p{number}": "x" * 16_384 for number in range(64)}},
        },
        "parameters of many levels": {"script": None, "trainer": {"name": "a:B", "params": _nested(5)}},
        "parameters of odd numbers": {
            "script": None,
            "trainer": {"name": "cvrp", "params": {"steps": -(2**62), "lr": 1e308}},
        },
        "a folder above": {"workingDir": "../../../../etc"},
        "a folder with a newline": {"workingDir": "a\nb"},
        "no time to stop": {"gracePeriod": "1s"},
        "all the time to stop": {"gracePeriod": "99999h"},
        "no time to be placed": {"health": {"pendingTimeout": "1s"}},
        "no time to start": {"health": {"startTimeout": "1s"}},
        "over at once": {"activeDeadline": "1s", "ttlAfterFinished": "0s"},
        "never over": {"activeDeadline": "99999h9999999m", "ttlAfterFinished": "99999h"},
        "metrics all the time": {"metrics": {"interval": "1s"}},
        "metrics never": {"metrics": {"interval": "99999h"}},
        "restarts without end": {
            "restart": {"maxRestarts": 100000, "noProgressLimit": 1000, "backoff": {"initial": "0s"}}
        },
        "more GPUs than there are": {"gpusPerNode": 64, "nodes": 3},
        "more memory than a number holds": {"resources": {"memory": "999999999999999P"}},
        "a thousandth of a byte": {"resources": {"memory": "0.001", "cpu": "0.001m"}},
        "no shared memory": {"resources": {"shm": "0"}},
        "an image that is none": {"image": "a b\nc:\U0001f4a3"},
        "an image in capitals": {"image": "HTTP://EXAMPLE.COM/../X"},
        "a label that is none": {"scheduling": {"nodeSelector": {"a b/c/d": "x"}}},
        "a topology that is none": {"scheduling": {**NOWHERE, "topology": {"required": "a/b"}}},
        "every taint": {"scheduling": {**NOWHERE, "tolerations": [{"operator": "Exists"}] * 32}},
        "an account that is not there": {"serviceAccountName": "nobody"},
        "a class that is not there": {"scheduling": {**NOWHERE, "priorityClass": "nobody"}},
        "secrets that are not there": {"envFrom": [{"secret": "nobody"}], "imagePullSecrets": ["nobody"]},
        "32 volumes": {"volumes": [{"name": f"v{n}", "mountPath": f"/v/{n}", "claim": "none"} for n in range(32)]},
        "a mount inside a mount": {"volumes": [{"name": "a", "mountPath": "/tmp/a/b", "claim": "a"}]},
        "1000 nodes, suspended": {"nodes": 1000, "suspend": True},
        "40 nodes": {"nodes": 40},
        "256 processes": {"procsPerNode": 256},
        "an agent of a standstill": {
            "preload": ["this", "antigravity"],
            "env": [{"name": "LD_PRELOAD", "value": "/x.so"}],
        },
    }
    twice = json.dumps(_job(metadata={"name": "twice"})).replace('"script": "1"', '"script": "1", "script": "2"')
    found = [Hostile("a key twice", twice.encode()), *(Hostile(what, _job(spec)) for what, spec in specs.items())]
    metadata: dict[str, dict[str, Any]] = {
        "52 characters": {"name": "a" * 52},
        "a digit": {"name": "0"},
        "the victim's pod": {"name": f"{name}-0"},
        "the victim's labels": {"labels": {"torchyard.dev/job-uid": uid, "torchyard.dev/job": name}},
        "a large annotation": {"annotations": {"torchyard.dev/intake-ca": "x" * 200_000}},
        "annotations of ours": {"annotations": {"torchyard.dev/round": "\U0001f4a3", "torchyard.dev/leader": "true"}},
        "a false owner": {
            "ownerReferences": [
                {
                    "apiVersion": "torchyard.dev/v1alpha1",
                    "kind": "TrainingJob",
                    "name": name,
                    "uid": uid,
                    "controller": True,
                }
            ]
        },
        "a finalizer that no controller removes": {"finalizers": ["example.com/forever"]},
        "a false past": {"creationTimestamp": "1970-01-01T00:00:00Z", "generation": -1, "uid": uid},
    }
    return found + [Hostile(f"metadata: {what}", _job(metadata=meta)) for what, meta in metadata.items()]


def _forged(victim: dict[str, Any], victims_pods: list[str]) -> list[Hostile]:
    """Status written by the user: wrong, huge, or that of another job."""
    statuses: dict[str, dict[str, Any]] = {
        "success": {"state": "Succeeded", "completionTime": "2020-01-01T00:00:00Z"},
        "negative counts": {"round": -5, "incarnation": -7, "restarts": {"total": -1, "counted": -1, "noProgress": -9}},
        "counts beyond reason": {"round": 2**62, "incarnation": 2**62, "gpuSeconds": 1e300},
        "the victim's pods": {
            "state": "Running",
            "round": 1,
            "rendezvous": {"open": True, "masterAddress": "10.0.0.1", "masterPort": 1, "members": victims_pods},
        },
        "members without end": {"rendezvous": {"open": True, "members": [f"{n:036d}" for n in range(5000)]}},
        "times that are none": {"startTime": "yesterday", "rendezvous": {"nextRoundTime": "9999-99-99T99:99:99Z"}},
        "a start before time": {"startTime": "0001-01-01T00:00:00Z", "completionTime": "9999-12-31T23:59:59Z"},
        "metrics without end": {"metrics": {f"m{n}": 1e308 for n in range(2000)}},
        "attempts without end": {"attempts": [{"round": n, "reason": "x" * 200} for n in range(1000)]},
        "conditions of others": {
            "conditions": [{"type": f"T{n}", "status": "True", "reason": "R"} for n in range(200)],
        },
        "escape sequences": {"message": "\x1b]0;owned\x07\x1b[2J" * 100, "reason": "\u202e"},
        "a large message": {"message": "x" * 500_000},
        "another generation": {"observedGeneration": 2**62, "state": "Running"},
        "a finished job that runs": {
            "state": "Failed",
            "conditions": [],
            "nodes": {"desired": 1, "ready": 1, "lost": -1},
        },
    }
    assert victim["metadata"]["uid"]
    return [Hostile(f"status: {what}", _job(), status) for what, status in statuses.items()]


def _nested(levels: int) -> Any:
    nested: Any = "x"
    for _ in range(levels):
        nested = {"x": nested}
    return nested
