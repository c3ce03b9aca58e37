"""Compiled code that the next test run finds again, also in another clone."""

import os
from functools import wraps
from pathlib import Path

import torch

# For TORCHINDUCTOR_CACHE_DIR.
COMPILED_CODE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "torchyard" / "inductor"
LIBRARIES = str(Path(torch.__file__).parents[1])
BUILD = f"{torch.__version__} {torch.version.git_version}"


def share_compiled_code():
    """Name a generated file of C++ by the build of PyTorch in place of the folder that it is installed in.

    The compiler's command line is a part of the name, with the folders of PyTorch's headers and libraries, so that each
    clone would compile all kernels again. A compiled library names those that it needs without their folders.
    """
    from torch._inductor import codecache

    write = codecache.write
    if hasattr(write, "__wrapped__"):
        return

    @wraps(write)
    def write_for_any_clone(content, extension, extra="", **more):
        if extension == "main.cpp":  # precompiled headers do belong to their folder
            extra = extra.replace(LIBRARIES, BUILD)
        return write(content, extension, extra, **more)

    codecache.write = write_for_any_clone
