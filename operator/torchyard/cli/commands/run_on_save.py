"""`torchyard run --watch`: start a run again, with the code as it is then, each time its code is edited."""

import asyncio
import os
from collections.abc import Sequence
from functools import partial

from torchyard.cli.commands.foreground import watch
from torchyard.cli.errors import RefusalError
from torchyard.cli.output import Format, say
from torchyard.client.bundle.attach import digest_now
from torchyard.client.bundle.edits import Edits
from torchyard.client.start import RequestedJob, start
from torchyard.local.run import read_run
from torchyard.local.shared_templates import OWNER


def run_on_save(
    wanted: RequestedJob, name: str | None, output: Format | None, *, quiet: bool, notify: Sequence[str]
) -> int:
    """Run a job until Ctrl-C; return the exit code of its last run.

    Raises:
        RefusalError: no code goes along that could be watched.
    """
    code = wanted.job.spec.code
    if code is None or code.path is None:
        raise RefusalError("--watch has no code to watch", "add --code FOLDER")
    os.environ.setdefault(OWNER, str(os.getpid()))  # the runs share one import of torch
    while True:
        folder = start(wanted, name, notice=say)
        job = read_run(folder)
        assert job is not None
        assert job.spec.code is not None
        digest = str(job.spec.code.digest)
        now = partial(digest_now, wanted.job, wanted.folder / code.path, "local")
        edits = Edits(wanted.folder / code.path, digest, say, now)
        ended = watch(folder, output, quiet=quiet, notify=notify, edits=edits)
        job = read_run(folder)
        over = job is not None and job.status.state.terminal
        if not edits.seen and not over:
            return ended
        if not edits.seen:
            say("waits for an edit of the code; Ctrl-C ends this command")
            try:
                asyncio.run(edits.wait())
            except KeyboardInterrupt:
                return ended
        say("the code was edited: starts again")
