"""`python torchyard-agent.pyz [--listen 127.0.0.1:PORT] -- COMMAND [ARG ...]`."""

from __future__ import annotations

import logging
import logging.handlers
import os
import sys

from torchyard_agent import settings as settings_module
from torchyard_agent.agent import Agent
from torchyard_agent.settings import Settings

BAD_CONFIGURATION = 64
_LOG_BYTES = 8 << 20


def main() -> None:
    """Run the agent; its exit code is that of the pod."""
    try:
        settings = settings_module.read(sys.argv[1:], os.environ)
    except ValueError as error:
        print(f"torchyard-agent: {error}", file=sys.stderr)
        sys.exit(BAD_CONFIGURATION)
    _log_to(settings)
    code = Agent(settings).run()
    sys.stdout.flush()
    os._exit(code)  # daemon threads may sit in a blocked call; nothing is left to wait for


def _log_to(settings: Settings) -> None:
    settings.log_dir.mkdir(parents=True, exist_ok=True)
    file = logging.handlers.RotatingFileHandler(settings.log_dir / "agent.log", maxBytes=_LOG_BYTES, backupCount=1)
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        handlers=[file, logging.StreamHandler()],
    )


if __name__ == "__main__":
    main()
