"""Rules of the code that travels with a job."""

from torchyard.api.validation.rules import Rule

CODE: tuple[Rule, ...] = (
    Rule(
        scope="",
        field="code",
        what="without an agent, no program unpacks the code in the pods",
        fix="use launcher.kind: agent, or an image that holds the code",
        holds=lambda spec: spec.launcher.kind == "agent" or spec.code is None,
        cel="self.launcher.kind == 'agent' || !has(self.code)",
        reads=("launcher",),
    ),
    Rule(
        scope="code",
        field="path",
        what="no code is named",
        fix="set path to the folder of your code, such as `.`",
        holds=lambda code: code.path is not None or code.digest is not None,
        cel="has(self.path) || has(self.digest)",
        reads=("digest",),
    ),
)
