"""The largest and most costly specs that are accepted, one a field, and those that are just too large."""

from typing import Any

EMOJI = "\U0001f4a3"
ARGUMENT, ALL, SCRIPT = 16_384, 60 * 1024, 60 * 1024
TOGETHER = "the total length is too large"


def _arguments() -> dict[str, list[str]]:
    """Lists whose texts together are as large as allowed: long ones, and many short ones of wide characters."""
    wide = (ALL - 3 * 64) // 4
    return {
        "long": ["x" * ARGUMENT, "x" * ARGUMENT, "x" * ARGUMENT, "x" * (ALL - 3 * ARGUMENT - 4 * 64)],
        "wide": [EMOJI * (wide // 3)] * 3,
        "many": ["\xe9" * 10 for _ in range(ALL // 104)],
    }


def largest() -> dict[str, dict[str, Any]]:
    """Accepted specs by what is large in them."""
    found: dict[str, dict[str, Any]] = {}
    for name, texts in _arguments().items():
        found[f"command: {name}"] = {"command": texts[:256]}
        found[f"args: {name}"] = {"command": ["x"], "args": texts}
        values = [text[:-100] for text in texts] if name != "many" else ["\xe9" * 10] * 256
        found[f"env: {name}"] = {
            "script": "1",
            "env": [{"name": f"V{number}", "value": value} for number, value in enumerate(values)],
        }
    found |= {
        "script: ASCII": {"script": "#" * SCRIPT},
        "script: wide": {"script": EMOJI + "#" * (SCRIPT - 4)},
        "params: small values": {"trainer": {"name": "a:B", "params": {f"p{n}": [[]] * 140 for n in range(120)}}},
        "params: numbers": {"trainer": {"name": "a:B", "params": {f"p{n}": [1000] * 96 for n in range(125)}}},
        "params: text": {"trainer": {"name": "a:B", "params": {f"p{n}": "x" * 16_000 for n in range(4)}}},
        "params: nested": {"trainer": {"name": "a:B", "params": {f"p{n}": [[[[1] * 9] * 9] * 9] for n in range(37)}}},
        "envFrom": {"script": "1", "envFrom": [{"secret": "a" * 253}] * 16},
        "preload": {"script": "1", "preload": ["a" * 256] * 32},
        "imagePullSecrets": {"script": "1", "imagePullSecrets": ["a" * 253] * 16},
        "volumes": {
            "script": "1",
            "volumes": [
                {"name": f"v{n}", "mountPath": f"/{n}/".ljust(1024, "x"), "claim": "c" * 253} for n in range(32)
            ],
        },
        "volumes: wide": {
            "script": "1",
            "volumes": [{"name": f"v{n}", "mountPath": f"/{n}/" + EMOJI * 300, "claim": "c" * 253} for n in range(32)],
        },
        "podAnnotations": {"script": "1", "podAnnotations": _annotations("x", 1580)},
        "podAnnotations: wide": {"script": "1", "podAnnotations": _annotations(EMOJI, 390)},
        "podLabels": {"script": "1", "podLabels": dict.fromkeys(_annotations("", 0), "v" * 63)},
        "gpu": {
            "script": "1",
            "gpusPerNode": 1,
            "gpu": {"ids": [f"{n}".rjust(64, EMOJI) for n in range(16)]},
        },
        "image": {"script": "1", "image": EMOJI * 512, "workingDir": "/" + EMOJI * 1023},
        "scheduling": {
            "script": "1",
            "scheduling": {
                "nodeSelector": {f"{n}".rjust(63, "a") + ".example/" + "k" * 63: "v" * 63 for n in range(32)},
                "tolerations": [{"key": "a" * 63 + ("." + "a" * 62) * 2 + "/" + "k" * 63, "value": "v" * 63}] * 32,
            },
        },
    }
    found |= {f"patterns: {name}": _with_patterns(pattern) for name, pattern in PATTERNS.items()}
    return found


def _annotations(character: str, length: int) -> dict[str, str]:
    return {f"{n}".rjust(63, "a") + ".example/" + "k" * 63: character * length for n in range(32)}


def _with_patterns(pattern: str) -> dict[str, Any]:
    return {"script": "1", "metrics": {"patterns": [pattern] * 16}}


def _filled(begin: str, part: str, end: str = ")") -> str:
    """A pattern of 256 characters or fewer."""
    return begin + part * ((256 - len(begin) - len(end)) // len(part)) + end


PATTERNS = {
    "classes of everything": _filled("(?i)(?P<a>", "[\u0100-\U0010ffff]"),
    "letters of everything": "(?i)(?P<a>[" + "".join(map(chr, range(0x400, 0x400 + 240))) + "])",
    "repeats of repeats": _filled("(?P<a>", "(?:a{9}){99}"),
    "nesting": "(?P<a>" + "(" * 120 + ")" * 121,
    "branches": _filled("(?P<a>", "a|"),
    "branches of classes": _filled("(?i)(?P<a>", "[\u0100-\ufffd]|"),
    "conditions": _filled("(?P<a>a)", "(?(a)b|c)", ""),
    "never ending": "(?P<loss>(a+)+)+$",
}


def too_large() -> list[dict[str, Any]]:
    """Rejected specs, as in the table of rejected objects."""
    lists = _arguments()
    cases: list[tuple[str, dict[str, Any], str, str]] = [
        (
            "commands that are too long",
            {"command": [*lists["wide"], "x"]},
            "spec.command",
            TOGETHER,
        ),
        (
            "arguments that are too long",
            {"command": ["x"], "args": [*lists["long"], "x"]},
            "spec.args",
            TOGETHER,
        ),
        (
            "variables that are too long",
            {"script": "1", "env": [{"name": f"V{n}", "value": "x" * 120} for n in range(256)]},
            "spec.env",
            TOGETHER,
        ),
        (
            "annotations that are too long",
            {"script": "1", "podAnnotations": _annotations("x", 8192)},
            "spec.podAnnotations",
            TOGETHER,
        ),
        (
            "annotations of too wide text",
            {"script": "1", "podAnnotations": _annotations(EMOJI, 450)},
            "spec.podAnnotations",
            TOGETHER,
        ),
        (
            "paths of too wide text",
            {
                "script": "1",
                "volumes": [{"name": f"v{n}", "mountPath": f"/{n}/" + EMOJI * 1000, "claim": "c"} for n in range(32)],
            },
            "spec.volumes",
            "the total length of mountPaths is too large",
        ),
        ("a script that is too long", {"script": "#" * (SCRIPT + 1)}, "spec.script", "use at most 61440"),
        ("a script of too wide text", {"script": EMOJI + "#" * (SCRIPT - 3)}, "spec.script", "use at most 60 KiB"),
        (
            "a label key without end",
            {"script": "1", "scheduling": {"nodeSelector": {"k" * 318: "v"}}},
            "spec.scheduling.nodeSelector",
            "label key is too long",
        ),
        (
            "a parameter that is too long",
            {"trainer": {"name": "a:B", "params": {"a": "x" * 16_385}}},
            "spec.trainer.params.a",
            "use at most 16384",
        ),
        (
            "parameters without end",
            {"trainer": {"name": "a:B", "params": {f"p{n}": n for n in range(129)}}},
            "spec.trainer.params",
            "use at most 128",
        ),
        (
            "a list without end",
            {"trainer": {"name": "a:B", "params": {"a": [0] * 1025}}},
            "spec.trainer.params.a",
            "use at most 1024",
        ),
        (
            "parameters too deep",
            {"trainer": {"name": "a:B", "params": {"a": [[[[[1]]]]]}}},
            "spec.trainer.params.a[0][0][0][0]",
            "nested too deeply",
        ),
    ]
    found: list[dict[str, Any]] = [
        {"name": name, "spec": spec, "at": at, "says": says} for name, spec, at, says in cases
    ]
    whole = {"trainer": {"name": "a:B", "params": {f"p{n}": "x" * 16_384 for n in range(4)}}}
    more = {"at": "spec.trainer.params", "says": "more than 64 KiB as JSON", "server": False}
    return [*found, {"name": "large parameters", "spec": whole, **more}]
