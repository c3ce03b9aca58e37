"""Hide torch, which the zygote has imported, until the program imports it, so that the program's settings apply.

A program that sets variables in `os.environ` before `import torch` expects torch to read them.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Dict, List, Optional, Sequence

from torchyard_agent.files import write_json

# Read once, when torch or a library below it is loaded: what a program sets later has no effect.
_READ_AT_IMPORT = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "TORCH_COMPILE_")
_APPLIED = ("OMP_NUM_THREADS",)
_NAMED = 4


def hide() -> None:
    """Remove torch from `sys.modules`; the first import of torch or of one of its modules restores it."""
    names = [name for name in sys.modules if name == "torch" or name.startswith("torch.")]
    if "torch" in names:
        sys.meta_path.insert(0, _Hidden({name: sys.modules.pop(name) for name in names}))


class _Hidden(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the hidden torch whenever a program looks for it, and loads it by restoring its modules."""

    def __init__(self, modules: Dict[str, Any]) -> None:
        self.modules = modules
        self.spec = modules["torch"].__spec__
        self.env = dict(os.environ)

    def find_spec(
        self, fullname: str, _path: Optional[Sequence[str]], _target: Optional[ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        if fullname != "torch":
            return None
        spec = importlib.machinery.ModuleSpec("torch", self, origin=self.spec.origin, is_package=True)
        spec.submodule_search_locations = list(self.spec.submodule_search_locations)
        spec.cached, spec.has_location = self.spec.cached, True
        return spec

    def create_module(self, _spec: importlib.machinery.ModuleSpec) -> Any:
        return self.modules["torch"]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec
        if self not in sys.meta_path:
            return  # another spec of before was loaded already
        sys.meta_path.remove(self)
        for name, each in self.modules.items():
            sys.modules.setdefault(name, each)
        self._apply(module)

    def _apply(self, torch: Any) -> None:
        """Apply variables that the program set before importing torch; report those that come too late."""
        changed = [name for name in {**self.env, **os.environ} if self.env.get(name) != os.environ.get(name)]
        threads = os.environ.get("OMP_NUM_THREADS", "")
        if "OMP_NUM_THREADS" in changed and threads.isdigit() and int(threads) > 0:
            torch.set_num_threads(int(threads))
        if any(name.startswith("TORCH_LOGS") for name in changed):
            torch._logging._internal._init_logs()  # noqa: SLF001 - what torch itself does when it is imported
        late = [name for name in changed if name.startswith(_READ_AT_IMPORT) and name not in _APPLIED]
        if late:
            _notice(sorted(late))


def _notice(names: List[str]) -> None:
    shown = ", ".join(names[:_NAMED])
    text = f"the program sets {shown} before `import torch`, which is too late in a warm start: set it in spec.env"
    path = Path(os.environ["TORCHYARD_RUN_DIR"]) / f"notice.{os.environ.get('RANK', '0')}.json"
    try:
        write_json(path, {"notices": [text]})
    except OSError:
        return  # a full disk must not stop the program
