"""Rules of what is run and what it gets."""

from torchyard.api import torchrun
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.spec_workload import EnvVar
from torchyard.api.validation.rule import Rule, one_source

RESERVED_ENV_PREFIXES = ("PET_", "TORCHYARD_", "TORCHELASTIC_", "MASTER_")
HOOKS_ENV = "TORCHYARD_HOOKS"
"""The one name of ours that a user may set: `0` turns the counting of steps in programs that report nothing off."""
RESERVED_ENV = (
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "NVIDIA_VISIBLE_DEVICES",
    "RANK",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "WORLD_SIZE",
)


def _is_free_name(variable: EnvVar) -> bool:
    name = variable.name
    return name == HOOKS_ENV or (name not in RESERVED_ENV and not name.startswith(RESERVED_ENV_PREFIXES))


def _is_argument_vector(spec: TrainingJobSpec) -> bool:
    return len(spec.command) != 1 or " " not in spec.command[0] or spec.command[0].startswith("/")


_RESERVED_CEL = " || ".join(
    (
        f"self.name in [{', '.join(repr(name) for name in RESERVED_ENV)}]",
        *(f"self.name.startsWith({prefix!r})" for prefix in RESERVED_ENV_PREFIXES),
    )
)


PROGRAM: tuple[Rule, ...] = (
    Rule(
        scope="",
        field="",
        what="it must say what to run, once",
        fix="give exactly one of trainer, command and script",
        holds=lambda spec: (spec.trainer is not None) + bool(spec.command) + (spec.script is not None) == 1,
        cel="(has(self.trainer) ? 1 : 0) + (has(self.command) && size(self.command) > 0 ? 1 : 0)"
        " + (has(self.script) ? 1 : 0) == 1",
        reads=("trainer", "command", "script"),
    ),
    Rule(
        scope="",
        field="args",
        what="nothing takes them",
        fix="give command or script, or put what a trainer needs into trainer.params",
        holds=lambda spec: not spec.args or bool(spec.command) or spec.script is not None,
        cel="!has(self.args) || size(self.args) == 0 || has(self.script)"
        " || (has(self.command) && size(self.command) > 0)",
        reads=("command", "script"),
    ),
    Rule(
        scope="",
        field="launcher.kind",
        what="none leaves a built-in trainer without the agent it reports through",
        fix="use agent, or give command or script",
        holds=lambda spec: spec.launcher.kind == "agent" or spec.trainer is None,
        cel="self.launcher.kind == 'agent' || !has(self.trainer)",
        reads=("trainer",),
    ),
    Rule(
        scope="",
        field="workingDir",
        what="{value} is relative, and without an agent there is nothing it is relative to",
        fix="give an absolute path, or use launcher.kind: agent",
        holds=lambda spec: (
            spec.launcher.kind == "agent" or spec.working_dir is None or spec.working_dir.startswith("/")
        ),
        cel="!has(self.workingDir) || self.workingDir.startsWith('/') || self.launcher.kind == 'agent'",
        reads=("launcher",),
    ),
    Rule(
        scope="",
        field="health.stall",
        what="{value} has no meaning where no agent sees steps",
        fix="leave it out, or use launcher.kind: agent",
        holds=lambda spec: spec.launcher.kind == "agent" or spec.health.stall.auto,
        cel="self.launcher.kind == 'agent' || self.health.stall == 'auto'",
        reads=("launcher",),
    ),
    Rule(
        scope="",
        field="command",
        what="one text that holds spaces is not an argument vector",
        fix="write each argument as an item of its own: [torchrun, train.py]",
        holds=_is_argument_vector,
        cel="size(self) != 1 || !self[0].contains(' ') || self[0].startsWith('/')",
        on_field=True,
    ),
    Rule(
        scope="",
        field="command",
        what="its --nproc-per-node is not what procsPerNode says, or no number of processes",
        fix="give one of them: a number from 1 to 256, or auto or gpu for one process a GPU",
        holds=torchrun.procs_agree,
        cel=None,
        reads=("args", "procsPerNode", "gpusPerNode", "launcher"),
    ),
    Rule(
        scope="",
        field="command",
        what="its --nnodes or --standalone is not what nodes says",
        fix="remove it from the command and set nodes",
        holds=torchrun.nodes_agree,
        cel=None,
        reads=("args", "nodes", "launcher"),
    ),
    Rule(
        scope="",
        field="command",
        what="its --max-restarts has no effect: a restart is a new round of the whole gang",
        fix="remove it from the command and set restart.maxRestarts",
        holds=torchrun.restarts_are_rounds,
        cel=None,
        reads=("args", "launcher"),
    ),
    Rule(
        scope="",
        field="command",
        what="its options --rdzv-*, --master-*, --node-rank and --local-addr have no effect: the round sets them",
        fix="remove them from the command",
        holds=torchrun.meets_as_told,
        cel=None,
        reads=("args", "launcher"),
    ),
    Rule(
        scope="env[]",
        field="name",
        what="{value} is reserved",
        fix=f"choose another name; launcher and agent set {', '.join(RESERVED_ENV)} and"
        f" {', '.join(f'{prefix}*' for prefix in RESERVED_ENV_PREFIXES)} except {HOOKS_ENV}",
        holds=_is_free_name,
        cel=f"self.name == {HOOKS_ENV!r} || !({_RESERVED_CEL})",
    ),
    Rule(
        scope="envFrom[]",
        field="",
        what="it needs one source",
        fix="give exactly one of configMap and secret",
        holds=one_source,
        cel="has(self.configMap) != has(self.secret)",
    ),
)
