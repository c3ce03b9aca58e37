"""The process of the operator: its event loop, signals and log."""

import asyncio
import logging
import signal

import uvloop

from torchyard.api.exit_codes import ExitCode
from torchyard.app.log_format import log_everything
from torchyard.app.memory_tuning import give_large_buffers_back
from torchyard.app.operator import Operator
from torchyard.app.options import Options
from torchyard.kubernetes.client.api import connected
from torchyard.kubernetes.election import DeposedError
from torchyard.version import __version__

_log = logging.getLogger(__name__)


def run(options: Options) -> bool:
    """Run the operator until SIGTERM or SIGINT; return whether it ended because it was asked to.

    Raises:
        ValueError: a setting cannot be used.
        SystemExit: likewise with a log in JSON, which then has the error.
    """
    give_large_buffers_back()
    log_everything(options.log_format)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_main(options))
    except Exception as error:
        if options.log_format == "text":
            raise
        is_setting = isinstance(error, ValueError)
        _log.critical("exiting: %s", error, exc_info=not is_setting)
        raise SystemExit(ExitCode.CONFIG if is_setting else ExitCode.USER_ERROR) from None


async def _main(options: Options) -> bool:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with connected(options.context) as api:
        _log.info("torchyard %s as %s, API server %s", __version__, options.identity, api.credentials.server)
        asked = True
        try:
            await Operator(api, options).run(stop)
        except* (DeposedError, OSError) as failed:
            # The kubelet starts a new process, whose caches are empty. A traceback would explain nothing more.
            _log.error("exiting: %s", failed.exceptions[0])
            asked = False
    return asked
