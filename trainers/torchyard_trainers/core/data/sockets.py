"""Where reading processes hand over what they have read: sockets of `multiprocessing`, whose paths have to be short."""

import os
import shutil
import tempfile
from multiprocessing import process, util

_LONGEST = 70  # bytes of a folder: a socket's path has at most 107, of which `multiprocessing` adds 32
_OTHERS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 -- a new folder of this user's is made there


def use_short_paths() -> None:
    """Choose a folder with a short path for the reading processes of this process, if that of `TMPDIR` is long.

    They would end with "AF_UNIX path too long". The folder is removed when this process ends.
    """
    config = process.current_process()._config  # type: ignore[attr-defined]  # noqa: SLF001
    if config.get("tempdir") is not None or len(os.fsencode(tempfile.gettempdir())) <= _LONGEST:
        return
    for place in _OTHERS:
        if os.access(place, os.W_OK):
            folder = tempfile.mkdtemp(prefix="pymp-", dir=place)  # 0700
            util.Finalize(None, shutil.rmtree, args=(folder, True), exitpriority=-100)
            config["tempdir"] = folder
            return
