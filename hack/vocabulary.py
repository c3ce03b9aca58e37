"""Reject words that readers stumble over, and former names of the operator and the agent.

    python hack/vocabulary.py [FOLDER ...]

Of programs docstrings and messages are read, of tests, benchmarks and hack docstrings and the names of tests, of pages
and of the chart every line. Comments in Python are not checked. docs/glossary.md has the terms to use instead.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    "operator/torchyard", "agent/torchyard_agent", "trainers/torchyard_trainers", "tests", "benchmarks", "hack",
    "charts/torchyard", "docs", "images", "examples", ".github", "README.md", "CONTRIBUTING.md", "SECURITY.md",
)  # fmt: skip
# Whose strings are not for users: values of test data.
SUPPORT = {"tests", "benchmarks", "hack"}
PAGES = {".md", ".tpl", ".txt", ".yaml"}
# The archive of measurements, and what tests expect to be rejected.
SKIPPED = {"docs/notebook", "tests/chart/golden"}
# What is found, and what to write.
WORDS = {
    r"whoever|somebody|nobody": "name the subject: the user, the agent, another process",
    r"meanwhile": "name the time: while the job runs, since it was read",
    r"anew": "again",
    r"lets? go of": "release, close",
    r"mend": "fix, correct",
    r"told": "sent, reported, called with, known",
    r"shall": "must, should, or the present tense",
    r"look(s|ed|ing)? after": "manage, watch",
    r"all is well|nothing says": "no problem was found, for an unknown reason",
    r"has its way|have their way": "wins, takes precedence",
    r"(what|whatever) (it|they) says?": "its message, its last lines",
    r"says? of": "report about, describe",
}
# What is found only in texts for users: the pages of `docs` and the README, and messages of the command line.
USERS_WORDS = {r"goes on": "continues"}
COMMAND_LINE = Path("operator/torchyard/cli")
ANY_WORD = re.compile(rf"\b(?:{'|'.join(WORDS | USERS_WORDS)})\b", re.IGNORECASE)
# A docstring begins with a verb that says what happens.
OPENING = "Return, Write, Print, Raise, Send"
OPENINGS = {r"(Give|Tell|Say|Let|Make of)s?\b": OPENING}
# A function of the operator or the agent is no noun; a property, a class and a test are.
NOUNS = r"(An?|The|Every|Each|One|All|Whether|What|Where|How|Why|When|Who|Seconds|Bytes|It|Its|Of)\b"
# Former names of modules, classes and functions, and the terms of the glossary that replaced them. In trainers some of
# these words mean what they say.
MODULES = {
    "aside": "finished_runs", "body": "payload", "drawing": "terminal", "dump": "stacks", "echo": "log_forwarder",
    "ending": "outcome", "facts": "pod_record", "garbage": "memory_tuning", "journal": "run_log",
    "judge": "parse", "not_yet": "unimplemented", "picture": "snapshot", "plain": "plain_launcher",
    "received": "parse", "standing": "ranking", "standstill": "hang_detector", "strays": "orphans",
    "stuck": "kubelet_events", "told": "status_report", "wakeup": "event_loop", "warm": "zygote_client",
    "wish": "profile_request", "words": "formatting",
}  # fmt: skip
DEFINITIONS = {
    "Bill": "RestartDecision", "Book": "AgentRegistry", "Charge": "RestartDecision", "Echo": "LogForwarder",
    "Facts": "PodRecord", "House": "ConnectionOwner", "Picture": "Snapshot", "Place": "Location",
    "Standing": "RoundState, Ranking", "Standstill": "HangDetector", "Strays": "Orphans",
    "Stuck": "KubeletEvents", "Turn": "Transition", "Wakeup": "EventLoop", "fare": "member_outcomes",
    "greet": "register", "hear": "record", "journal": "log_to_run_folder", "judge": "broken_rules",
    "let_go": "release_gang", "place": "stack_location, location_options",
    "received": "parse_job", "seats": "active_pods", "verdict": "find_hung_rank, final_reason",
    "meets_as_told": "leaves_rendezvous_to_round",
    "counts_anew": "counts_from_start", "unheard": "silent_members", "workers_unheard": "silent_workers",
    "_tell": "_report, _notify, _forward", "_heard": "_on_report, _silent_since",
}  # fmt: skip


Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def main() -> int:
    """Print each finding; the exit code is 1 if there is one."""
    roots = [Path(each) for each in sys.argv[1:]] or [ROOT / each for each in FOLDERS]
    files = [path for root in roots for path in ([root] if root.is_file() else sorted(root.rglob("*")))]
    found = [line for path in files if not _is_skipped(path) for line in findings(path)]
    print(*found, sep="\n", end="\n" if found else "")
    return int(bool(found))


def findings(path: Path) -> Iterator[str]:
    """Yield a line for each word of a file that is rejected."""
    where = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    if path.suffix in PAGES:
        for_users = where.suffix == ".md" and where.parent in {Path("docs"), Path()}
        yield from _rejected(path.read_text(encoding="utf-8"), where, 1, for_users=for_users)
    if path.suffix != ".py":
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    texts = {id(text) for text in docstrings(nodes)}
    support = where.parts[0] in SUPPORT
    renamed = not support and "trainers" not in where.parts
    if renamed and (instead := MODULES.get(path.stem)):
        yield f"{where}:1: a module named {path.stem!r}: {instead}"
    for node in nodes:
        if isinstance(node, Definition):
            yield from _of_definition(node, where, renamed=renamed)
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if id(node) in texts or not support:
            for_users = id(node) not in texts and where.is_relative_to(COMMAND_LINE)
            yield from _rejected(node.value, where, node.lineno, for_users=for_users)
        for pattern, instead in OPENINGS.items():
            if id(node) in texts and (match := re.match(pattern, node.value)):
                yield f"{where}:{node.lineno}: a docstring that begins with {match[0]!r}: {instead}"


def _is_skipped(path: Path) -> bool:
    return path.is_relative_to(ROOT) and any(path.is_relative_to(ROOT / each) for each in SKIPPED)


def _of_definition(node: Definition, where: Path, *, renamed: bool) -> Iterator[str]:
    if renamed and node.name in DEFINITIONS:
        yield f"{where}:{node.lineno}: the name {node.name!r}: {DEFINITIONS[node.name]}"
    if renamed and (first := _noun(node)):
        yield f"{where}:{node.lineno}: a docstring of a function that begins with {first!r}: {OPENING}"
    if node.name.startswith("test_"):
        yield from _rejected(node.name.replace("_", " "), where, node.lineno)


def _noun(node: Definition) -> str:
    """Return the first word of a function's docstring if it is no verb; empty: it is one, or there is no docstring."""
    if isinstance(node, ast.ClassDef) or any("property" in ast.unparse(each) for each in node.decorator_list):
        return ""
    match = re.match(NOUNS, ast.get_docstring(node) or "")
    return match[0] if match else ""


def _rejected(text: str, where: Path, first: int, *, for_users: bool = False) -> Iterator[str]:
    if not ANY_WORD.search(text):
        return
    for pattern, instead in (WORDS | USERS_WORDS if for_users else WORDS).items():
        for match in re.finditer(rf"\b(?:{pattern})\b", text, re.IGNORECASE):
            line = first + text.count("\n", 0, match.start())
            yield f"{where}:{line}: {match[0]!r}: {instead}"


def docstrings(nodes: Iterable[ast.AST]) -> Iterator[ast.Constant]:
    """Yield the docstrings of the modules, classes and functions among nodes."""
    for node in nodes:
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or not node.body:
            continue
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            yield first.value


if __name__ == "__main__":
    sys.exit(main())
