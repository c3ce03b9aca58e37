"""The program of the trainer's container, `python torchyard-agent.pyz -- COMMAND`, and what is run beside it."""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import sys
from pathlib import Path
from typing import Mapping

from torchyard_agent import install, termination
from torchyard_agent import settings as settings_module
from torchyard_agent.agent import Agent
from torchyard_agent.settings import Settings
from torchyard_agent.workers import environment, stacks, template
from torchyard_agent.workers.titles import name_process

_LOG_BYTES = 8 << 20
_STACKS_ARGUMENTS = 3
_TEMPLATE_ARGUMENTS = 5


def run() -> None:
    """Run the agent, or what its command line names; the exit code is that of the pod."""
    try:
        if sys.argv[1:2] == ["stacks"] and len(sys.argv) == _STACKS_ARGUMENTS:
            print(json.dumps(stacks.listed(Path(sys.argv[2]))))
            return
        if sys.argv[1:2] == ["template"] and len(sys.argv) > _TEMPLATE_ARGUMENTS:
            listening, owner, unused, *command = sys.argv[2:]
            template.execute([listening, owner, unused], settings_module.read(command, os.environ))
        environment.unpack(os.environ)
        install.write_own(os.environ)
        _enter_working_folder(os.environ)
        settings = settings_module.read(sys.argv[1:], os.environ)
    except ValueError as error:
        termination.refuse(str(error), os.environ)
    name_process("ty-agent")
    _log_to(settings)
    _make_checkpoint_folder(os.environ)
    code = Agent(settings).run()
    sys.stdout.flush()
    os._exit(code)  # daemon threads may sit in a blocked call; nothing is left to wait for


def _enter_working_folder(env: Mapping[str, str]) -> None:
    folder = env.get("TORCHYARD_WORKING_DIR")
    if not folder or env.get("TORCHYARD_CODE_ROOT"):
        return  # none, or one that each round enters, below its code
    try:
        os.chdir(folder)
    except OSError as error:
        where = f"`{folder}` cannot be used as working directory ({error.strerror})"
        raise ValueError(f"spec.workingDir: {where}: name a folder of the image or of a volume") from error


def _make_checkpoint_folder(env: Mapping[str, str]) -> None:
    """Create the checkpoint folder, where programs may save; without it their save fails with an error."""
    folder = env.get("TORCHYARD_CHECKPOINT_DIR")
    if folder:
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            logging.getLogger(__name__).warning("TORCHYARD_CHECKPOINT_DIR: %s", error)


def _log_to(settings: Settings) -> None:
    settings.log_dir.mkdir(parents=True, exist_ok=True)
    file = logging.handlers.RotatingFileHandler(settings.log_dir / "agent.log", maxBytes=_LOG_BYTES, backupCount=1)
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        handlers=[file, logging.StreamHandler()],
    )
