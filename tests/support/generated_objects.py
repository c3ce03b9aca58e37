"""Objects made from the schema of TrainingJob by chance, the same for the same seed: mostly valid, a few things odd."""

import copy
import itertools
import random
import re
from collections.abc import Iterator
from typing import Any

from torchyard.api.schema import INT_OR_STRING, Schema, spec_schema
from torchyard.api.validation.schema_check import ANY
from torchyard.sweeps.schema import spec_schema as sweep_schema

# Values that have broken readers before: of every type, at every edge, of every script.
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 2.0, 0.5, -0.0, 1e308, 5e-324, 2**31, 2**63 - 1, -(2**63)),
    *("", " ", "0", "1", "true", "null", "auto", "none", "a", "A", "a\n", "\n", "\t", "\x7f", "\u202e", "\u00e9"),
    *("\u2028", "\U0001f4a3", "a" * 64, "x" * 300, "/", "/a", "/./a", "/a/../b", "//a", "/tmp", "/data/"),
    *("90s", "1h30m", "0s", "h", "99999h", "1Gi", "1e3", "-1Gi", "1.5Gi", "4", "a/b", "a.b/c", "example.com/x", "a:b"),
    *("a.b:C", "cvrp", "*", "(?P<a>x)", "(?P<a>[", "(", "$(A)"),
    *([], [None], [[]], [0], ["a"], ["a", "a"], [""], {}, {"": 1}, {"a": None}, {"a": {}}, {"name": "a"}, {"steps": 1}),
)
TEXTS = (
    *(
        "a",
        "main",
        "x.y",
        "train.py",
        "runs",
        "nvidia.com/gpu",
        "zone",
        "90s",
        "1h30m",
        "5m",
        "16Gi",
        "4",
        "8.0",
        "9.0",
    ),
    *("A", "NVIDIA-H100", "/data", "/data/a", "(?P<loss>[0-9.]+)", "runs/best", "a.b:C"),
)
PROGRAMS: tuple[dict[str, Any], ...] = (
    {"script": "print(1)"},
    {"command": ["torchrun", "train.py"]},
    {"trainer": {"name": "a.b:C"}},
    {"trainer": {"name": "a.b:C", "params": {"steps": 1, "deep": {"x": [1, "a", None, True]}}}},
)
# Parts of a spec that break a rule between fields, or nearly: by chance, few values meet one.
NEAR_RULES: tuple[dict[str, Any], ...] = (
    *({"env": [{"name": name, "value": "1"}]} for name in ("RANK", "PET_X", "MASTER_ADDR", "TORCHYARD_HOOKS", "RANKS")),
    *({name: {"torchyard.dev/x": "a"}} for name in ("podLabels", "podAnnotations")),
    *({name: {"kubectl.kubernetes.io/x": "a"}} for name in ("podLabels", "podAnnotations")),
    *({name: {"no key!": "a"}} for name in ("podLabels", "podAnnotations")),
    *(
        {"volumes": [{"name": name, "claim": "c", "mountPath": path}]}
        for name, path in (("torchyard-x", "/a"), ("a", "/tmp"), ("a", "/a/../b"), ("a", "/torchyard"), ("a", "/data"))
    ),
    {"command": ["python train.py"]},
    *(
        {"inputs": [{"name": "a", "from": source, **more}], **others}
        for source, more, others in (
            *(
                ("https://a.b/c", {}, {}),
                ("https://a.b/c", {"sha256": "0" * 64}, {}),
                ("s3://bucket", {"sha256": "0" * 64}, {}),
            ),
            *(("claim:a", {"include": ["b"]}, {}), ("s3://bucket", {"include": ["b"]}, {}), ("claim:a/../b", {}, {})),
            *(("s3://bucket", {"path": path}, {}) for path in ("/tmp", "/a/../b", "/data")),
            ("s3://bucket", {"path": "/data"}, {"volumes": [{"name": "a", "claim": "c", "mountPath": "/data"}]}),
            ("s3://bucket", {}, {"command": ["a"], "launcher": {"kind": "none"}}),
            ("s3://bucket", {}, {"inputCache": {"claim": "c"}}),
            ("s3://bucket", {}, {"args": ["${inputs.b}"]}),
        )
    ),
    {"inputCache": {"claim": "c"}},
    *(
        {"command": ["torchrun", *options, "t.py"], "nodes": 2, "procsPerNode": 2}
        for options in (
            *((), ("--nproc-per-node", "3"), ("--nproc-per-node=2",), ("--nnodes=3",), ("--standalone",)),
            *(("--max-restarts", "3"), ("--rdzv-backend=c10d",), ("--node_rank", "0")),
        )
    ),
    {"parallelism": {"strategy": "hsdp"}, "procsPerNode": 1},
    {"parallelism": {"strategy": "hsdp"}, "procsPerNode": 2},
    {"trainer": {"name": "cvrp"}, "args": ["--lr=1"]},
    *(
        {"trainer": {"name": name, "mode": mode}, **more}
        for name, mode in (("cvrp", "train"), ("cvrp", "bench"), ("vecrl", "eval"), ("lm", "export"))
        for more in (
            {"checkpoint": {"resumeFrom": "runs/best"}},
            {"checkpoint": {"initFrom": "runs/best"}},
            {"evaluation": {"everySteps": 5}},
            {"health": {"stall": "5m"}},
            {"export": {"formats": ["hf"]}},
        )
    ),
    {"scheduling": {"nodeSelector": {"a." * 126 + "a/" + "b" * 64: "x"}}},
    # By characters short enough for the schema, by bytes too long for a rule.
    {"script": "\u00e9" * 31_000},
    {"command": ["python", *["\u00e9" * 1000] * 31]},
    {"command": ["python"], "args": ["\u00e9" * 1000] * 31},
    {"env": [{"name": f"A{number}", "value": "\u00e9" * 1000} for number in range(31)]},
    *(
        {section: {name: "0s"}}
        for section, name in (
            *(("health", "startTimeout"), ("health", "stall"), ("health", "pendingTimeout")),
            *(("scheduling", "gangTimeout"), ("metrics", "interval")),
        )
    ),
    {"podAnnotations": {f"a{number}": "\u00e9" * 1000 for number in range(31)}},
    {"volumes": [{"name": f"a{n}", "claim": "c", "mountPath": f"/{n}/" + "\u00e9" * 1000} for n in range(32)]},
    {"parallelism": {"memoryFraction": 0}},
    {"parallelism": {"strategy": "single"}, "nodes": 2},
    {"parallelism": {"batchPerProcess": 4}, "elastic": {"minNodes": 1, "maxNodes": 2}},
    {"elastic": {"minNodes": 2, "maxNodes": 1}},
    {"elastic": {"minNodes": 1, "maxNodes": 2}, "nodes": 3},
    {"elastic": {"minNodes": 1, "maxNodes": 2}, "nodes": 2, "spares": 1, "launcher": {"kind": "agent"}},
    {"elastic": {"minNodes": 1, "maxNodes": 2}, "nodes": 1, "parallelism": {"strategy": "single"}},
    {"elastic": {"minNodes": 1, "maxNodes": 2}, "nodes": 1, "command": ["python"], "launcher": {"kind": "none"}},
    {"spares": 1, "nodes": 1, "command": ["python"], "launcher": {"kind": "none"}},
    {"spares": 64, "nodes": 1000},
    *(
        {"resources": {"claims": [{"name": "a", "template": "b"}]}, "parallelism": {"batchPerProcess": 4}, **procs}
        for procs in ({}, {"procsPerNode": 2})
    ),
    {"command": ["python"], "launcher": {"kind": "none"}, "health": {"stall": "5m"}},
    {"command": ["python"], "launcher": {"kind": "none"}, "workingDir": "a"},
    {"command": ["python"], "launcher": {"kind": "none"}},
    *({"code": code} for code in ({}, {"path": "."}, {"digest": "ab" * 32, "parts": 2})),
    *(
        {"code": code}
        for code in (
            {"git": {"url": "https://host/code"}},
            {"git": {"url": "git@host:code", "ref": "v1", "path": "a/b", "secret": "s"}, "commit": "ab" * 20},
            {"git": {"url": "https://host/code"}, "path": "."},
            {"git": {"url": "https://user:word@host/code"}},
            {"git": {"url": "ext::sh"}},
            {"git": {"url": "https://host/code", "path": "../x"}},
            {"image": f"host/code@sha256:{'ab' * 32}", "digest": "ab" * 32},
            {"image": "host/code:latest"},
            {"claim": {"name": "data", "path": "code"}},
            {"claim": {"name": "data", "path": "/code"}},
            {"path": ".", "requirements": "requirements.txt", "wheels": "wheels"},
            {"path": ".", "requirements": "environment.yml"},
            {"path": ".", "requirements": "../requirements.txt"},
            {"git": {"url": "https://host/code"}, "requirements": "uv.lock"},
            {"path": ".", "wheels": "wheels"},
            {"path": ".", "requirements": "script", "wheels": "../wheels"},
            {"claim": {"name": "data"}, "image": f"host/code@sha256:{'ab' * 32}"},
        )
    ),
    {"code": {"git": {"url": "https://host/code"}}, "inputCache": {"claim": "c"}},
    {"command": ["python"], "launcher": {"kind": "none"}, "code": {"path": "."}},
    {"metrics": {"patterns": ["loss=(?P<loss>[0-9.]+)"]}},
    {"checkpoint": {"interval": {"steps": 5}, "volume": {"claim": "c"}}},
    {"envFrom": [{"configMap": "a"}]},
    *({"scheduling": {"tolerations": [each]}} for each in ({"operator": "Exists"}, {"key": "a", "value": "b"})),
    {"scheduling": {"tolerations": [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}]}},
    {"script": "1", "command": ["python"]},
    {"device": "cpu", "gpusPerNode": 1},
    {"parallelism": {"batchPerProcess": 4, "globalBatchSize": 9}},
    {"parallelism": {"microBatchSize": 8, "globalBatchSize": 4}},
    {"parallelism": {"microBatchSize": 8, "batchPerProcess": 4}},
    {"parallelism": {"microBatchSize": 8, "microBatchTokens": 64}},
    {"parallelism": {"microBatchTokens": 64}},
    {"trainer": {"name": "cvrp"}, "resources": {"claims": [{"name": "a", "template": "b"}]}}
    | {"parallelism": {"batchPerProcess": 4}, "procsPerNode": "auto"},
    {"parallelism": {"strategy": "ddp", "cpuOffload": True}},
    *({"command": ["python"], "logging": {name: True}} for name in ("wandb", "mlflow")),
    {"trainer": {"name": "cvrp"}, "checkpoint": {"initFrom": "a", "resumeFrom": "b"}},
    {"restart": {"policy": "Never", "maxRestarts": 1}},
    {"health": {"replaceStraggler": True}},
    {"health": {"replaceStraggler": True}, "spares": 1, "launcher": {"kind": "agent"}},
    {"health": {"replaceStraggler": True, "straggler": False}, "spares": 1},
    *(
        {"scheduling": {"gang": gang, **queue}}
        for gang in ("kueue", "volcano", "native", "none")
        for queue in ({}, {"queue": "a"})
    ),
    {"scheduling": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}},
    {"volumes": [{"name": name, "claim": "c", "mountPath": "/a"} for name in ("a", "b")]},
    {"restart": {"backoff": {"max": "0s"}}},
    {"activeDeadline": "0s"},
    {"gracePeriod": "0s"},
    *({"debug": {"keepFailedPod": span}} for span in ("0s", "1h")),
)


def generated(count: int, seed: int = 1) -> Iterator[dict[str, Any]]:
    """Whole objects: a thousand of them contain each of NEAR_RULES."""
    chance = random.Random(seed)
    near = itertools.cycle(NEAR_RULES)
    for number in range(count):
        yield _object(chance, next(near) if number % 4 == 0 else None)


def _object(chance: random.Random, near: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return an object; one that contains `near` has nothing odd besides, so that rules between fields are judged."""
    spec = _section(spec_schema(), chance, 0.08)
    for program in ("script", "command", "trainer", "args"):
        spec.pop(program, None)
    spec |= copy.deepcopy(chance.choice(PROGRAMS))
    if near is not None:
        if near.keys() & {"script", "command", "trainer"}:
            for program in ("script", "command", "trainer"):
                spec.pop(program, None)
        spec |= copy.deepcopy(near)
    document: dict[str, Any] = {
        "apiVersion": "torchyard.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "x"},
        "spec": spec,
    }
    for _ in range(chance.choice((0, 0, 1, 1, 2)) if near is None else 0):
        _spoil(document["spec"], spec_schema(), chance)
    return document


def _section(schema: Schema, chance: random.Random, share: float) -> dict[str, Any]:
    """A section with its required fields and a share of the others."""
    required = schema.get("required", ())
    found = {}
    for name, child in schema["properties"].items():
        if name in required or chance.random() < share:
            found[name] = _value(child, chance)
    return found


def _value(schema: Schema, chance: random.Random) -> Any:
    """A value that is likely to be valid."""
    if schema.get(ANY):
        return chance.choice((1, "a", [1], {"a": 1}, 0.5, True))
    if "enum" in schema:
        return chance.choice(schema["enum"])
    if schema.get(INT_OR_STRING):
        known = [text for text in (*TEXTS, "auto") if re.search(schema["pattern"], text)]
        return chance.choice((schema.get("minimum", 1), 1, 4, *known))
    if schema["type"] == "object" and "properties" in schema:
        return _section(schema, chance, 0.4)
    if schema["type"] == "object":
        keys = chance.sample(("zone", "a", "x.dev/y"), chance.randrange(3))
        return {key: _value(schema["additionalProperties"], chance) for key in keys}
    if schema["type"] == "array":
        return [_value(schema["items"], chance) for _ in range(chance.choice((0, 1, 1, 2)))]
    return _scalar(schema, chance)


def _scalar(schema: Schema, chance: random.Random) -> Any:
    if schema["type"] == "boolean":
        return chance.random() < 0.5
    if schema["type"] in {"integer", "number"}:
        low, high = schema.get("minimum", 0), schema.get("maximum", 1000)
        return chance.choice((low, high, min(high, low + 1), min(high, low + 7)))
    pattern, most = schema.get("pattern", ""), schema.get("maxLength", 1)
    return chance.choice([text for text in TEXTS if len(text) <= most and re.search(pattern, text)] or ["a"])


def _spoil(at: dict[str, Any], schema: Schema, chance: random.Random) -> None:
    """Put something odd into a section or one below it."""
    below = [
        name
        for name, value in at.items()
        if isinstance(value, dict) and "properties" in schema.get("properties", {}).get(name, {})
    ]
    if below and chance.random() < 0.6:
        name = chance.choice(below)
        _spoil(at[name], schema["properties"][name], chance)
        return
    names = [*schema.get("properties", {}), *at, "unknown"]
    name = chance.choice(names)
    value = at.get(name)
    if isinstance(value, list) and value and chance.random() < 0.5:
        place = chance.randrange(len(value))
        item = value[place]
        if isinstance(item, dict) and chance.random() < 0.7:
            _spoil(item, schema["properties"][name]["items"], chance)
        else:
            value[place] = copy.deepcopy(chance.choice(ODD))
    elif chance.random() < 0.1:
        at.pop(name, None)
    else:
        at[name] = copy.deepcopy(chance.choice(ODD))


def differs_by_design(value: Any) -> bool:
    """Whether `torchyard validate` may reject what the API server accepts (docs/validation.md)."""
    if isinstance(value, dict):
        return any(differs_by_design(part) for pair in value.items() for part in pair)
    if isinstance(value, list):
        return any(map(differs_by_design, value))
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, str) and ("\x7f" in value or "(?P<a>[" in value)


TEMPLATES: tuple[dict[str, Any], ...] = (
    {"trainer": {"name": "vecrl", "params": {"environment": "cartpole"}}},
    {"trainer": {"name": "a.b:C"}},
    {"trainer": {"name": "a.b:C", "params": {"lr": 0.1, "deep": {"x": [1, "a", None, True]}}}},
    {"script": "print(1)", "metrics": {"patterns": ["(?P<evalReturn>[0-9.]+)"]}},
    {"command": ["torchrun", "train.py"]},
)
PARAMETERS: tuple[dict[str, Any], ...] = (
    {"path": "trainer.params.lr", "float": {"min": 0.0003, "max": 0.01, "log": True}},
    {"path": "trainer.params.lr", "float": {"min": 0.5, "max": 1.5, "step": 0.5}},
    {"path": "trainer.params.epochs", "int": {"min": 2, "max": 8}},
    {"path": "trainer.params.epochs", "choice": [1, 2]},
    {"path": "nodes", "int": {"min": 1, "max": 2}},
    {"path": "nodes", "choice": [1, 2]},
    {"path": "resources.memory", "choice": ["1Gi", "2Gi"]},
    {"path": "image", "choice": ["a/b", "a/c"]},
    {"path": "parallelism.globalBatchSize", "int": {"min": 8, "max": 64, "step": 8}},
)
# Parts of a sweep that break a rule, or nearly.
NEAR_SWEEPS: tuple[dict[str, Any], ...] = (
    *(
        {"parameters": [{"path": path, "choice": ["a", "b"]}]}
        for path in (
            "serviceAccountName",
            "trainer.name",
            "trainer.named",
            "suspend",
            "metrics.milestones.metric",
            "env",
            "nodez",
            "activeDeadline",
        )
    ),
    *(
        {"parameters": [{"path": "trainer.params.x", "choice": choice}]}
        for choice in ([1, 1.5], [1, 1], [True, 1], [None], [["a"]], [{"a": 1}])
    ),
    *(
        {"parameters": [{"path": "trainer.params.x", kind: {"min": low, "max": high, **more}}]}
        for kind, low, high in (
            ("float", 0.5, 0.5),
            ("float", 2.5, 0.5),
            ("float", 0.5, 1e300),
            ("int", 3, 3),
            ("int", 9, 0),
            ("int", 0, 9),
        )
        for more in ({}, {"log": True}, {"step": 3}, {"step": 100})
    ),
    *(
        {"parameters": [{"path": "trainer.params.x", kind: bounds}]}
        for kind, bounds in (
            ("float", {"min": 0, "max": 1, "log": True}),
            ("float", {"min": 0.5, "max": 1.5, "log": True, "step": 0.5}),
            ("float", {"min": 0.5, "max": 1.5, "step": 3.5}),
            ("int", {"min": 1, "max": 9, "log": True, "step": 3}),
        )
    ),
    {"parameters": [{"path": "trainer.params.x", "choice": [1], "int": {"min": 0, "max": 1}}]},
    {"parameters": [{"path": "trainer.params.x", "float": {"min": 0.5, "max": 1.5}, "int": {"min": 0, "max": 1}}]},
    {"parameters": [{"path": "trainer.params.x"}]},
    *(
        {"parameters": [{"path": "args[--amp]", **values}]}
        for values in ({"choice": [True, False]}, {"choice": [1, 2]}, {"int": {"min": 0, "max": 1}})
    ),
    {"parameters": [{"path": "trainer.params.x", "choice": [1]}, {"path": "trainer.params.x", "choice": [2]}]},
    {"parameters": [{"path": f"trainer.params.p{number}", "choice": [1]} for number in range(33)]},
    {"parameters": [{"path": "trainer.params.x", "choice": list(range(65))}]},
    {
        "parameters": [
            {"path": f"trainer.params.p{number}", "choice": ["x" * 250 + str(n) for n in range(9)]}
            for number in range(8)
        ]
    },
    *(
        {
            "parameters": [
                {"path": "trainer.params.x", "choice": [1, 2]},
                {"path": "trainer.params.y", "choice": [1], "conditions": [{"path": path, "values": values}]},
            ]
        }
        for path, values in (("trainer.params.x", [1]), ("trainer.params.x", [3]), ("trainer.params.z", [1]))
    ),
    *(
        {"parameters": [PARAMETERS[0]], "firstTrials": points, **more}
        for points in ([{}], [{"trainer.params.lr": 0.001}] * 3, [{"trainer.params.lr": 9}], [{"nodes": 1}])
        for more in ({}, {"maxTrials": 2}, {"algorithm": {"name": "grid"}})
    ),
    *({"algorithm": {"name": name}, "maxTrials": 1000} for name in ("grid", "cmaes", "gp", "random")),
    *({"earlyStopping": {"name": name, "firstPercent": 90, "factor": 10}} for name in ("asha", "hyperband", "median")),
    *(
        {"jobTemplate": {"spec": {"trainer": {"name": "a.b:C", "mode": mode}, **more}}}
        for mode, more in (
            *(("train", {}), ("eval", {}), ("train", {"suspend": True}), ("train", {"ttlAfterFinished": "1h"})),
            ("train", {"metrics": {"milestones": {"metric": "x", "percents": [10]}}}),
            *(("train", {"launcher": {"kind": kind}}) for kind in ("agent", "none")),
        )
    ),
    *({"deadline": "0s", "ttlAfterFinished": text} for text in ("0s", "1h", "99999h")),
)


def generated_sweeps(count: int, seed: int = 1) -> Iterator[dict[str, Any]]:
    """Whole sweeps; the templates are those of `generated` in a part of them."""
    chance = random.Random(seed)
    near = itertools.cycle(NEAR_SWEEPS)
    for number in range(count):
        yield _sweep(chance, next(near) if number % 4 == 0 else None)


def _sweep(chance: random.Random, near: dict[str, Any] | None) -> dict[str, Any]:
    template = copy.deepcopy(chance.choice(TEMPLATES)) if chance.random() < 0.8 else _object(chance)["spec"]
    parameters = {each["path"]: each for each in chance.sample(PARAMETERS, chance.choice((1, 1, 2, 3)))}
    known = [each for each in parameters.values() if "trainer" in template or not each["path"].startswith("trainer.")]
    spec = _section(sweep_schema(), chance, 0.2) | {
        "objective": {"metric": chance.choice(("evalReturn", "evalReturn", "loss")), "goal": "maximize"},
        "parameters": copy.deepcopy(known or [PARAMETERS[5]]),
        "jobTemplate": {"spec": template},
    }
    if "firstTrials" in spec:
        spec["firstTrials"] = [{}]
    if near is not None:
        spec |= copy.deepcopy(near)
    for _ in range(chance.choice((0, 0, 1, 1, 2)) if near is None else 0):
        _spoil(spec, sweep_schema(), chance)
    return {
        "apiVersion": "torchyard.dev/v1alpha1",
        "kind": "TrainingSweep",
        "metadata": {"name": "x"},
        "spec": spec,
    }


def cel_rules(definition: Schema) -> Iterator[tuple[str, str]]:
    """Yield path and message of every CEL rule of a resource that judges one object, not a change."""
    version = definition["spec"]["versions"][0]
    yield from _cel_rules(version["schema"]["openAPIV3Schema"]["properties"]["spec"], "spec")


def _cel_rules(schema: Schema, path: str) -> Iterator[tuple[str, str]]:
    for rule in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" not in rule["rule"]:
            yield f"{path}{rule.get('fieldPath', '')}", rule["message"]
    for name, child in schema.get("properties", {}).items():
        yield from _cel_rules(child, f"{path}.{name}")
    if "items" in schema:
        yield from _cel_rules(schema["items"], f"{path}[]")


def is_present(path: str, value: Any) -> bool:
    """Whether an object has the field `spec.volumes[].name`."""
    name, _, rest = path.partition(".")
    child = value.get(name.removesuffix("[]")) if isinstance(value, dict) else None
    items = (child if isinstance(child, list) else []) if name.endswith("[]") else [child]
    return any(item is not None and (not rest or is_present(rest, item)) for item in items)
