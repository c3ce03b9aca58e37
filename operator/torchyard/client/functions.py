"""`@torchyard.job`: a Python function as the program of a job.

The job contains the source of the function's module as `spec.script`; for a function that was defined in a notebook,
the source of the function itself. Arguments are JSON, on the command line. Nothing is pickled.
"""

import functools
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar, overload

import msgspec

from torchyard.api.backends import Backend
from torchyard.api.names import derived_name
from torchyard.api.resource import API_VERSION, KIND
from torchyard.api.spec import MAX_SCRIPT_BYTES, TrainingJobSpec
from torchyard.api.validation.problems import nearest
from torchyard.client.backend import Notice, logged
from torchyard.client.errors import TorchYardError

P = ParamSpec("P")
R = TypeVar("R")

MAX_ARGUMENTS = 16 * 1024  # characters: one element of spec.args
PROGRAM = frozenset({"trainer", "command", "args", "script"})
"""Fields that say what is run, which the function does."""

_LAUNCHER = '''\
"""Calls `{function}` of the module below with the JSON that is its argument; written by torchyard.job."""
import json
import linecache
import os
import sys
import types

SOURCE = {source}
ARGUMENTS = sys.argv[1:]


def module():
    """Execute the module under another name, so that `if __name__ == "__main__"` in it is false.

    It sees no arguments, and imports modules of its folder, as where it was started.
    """
    name = {module!r} if {module!r} not in sys.modules else {module!r} + "_job"
    made = types.ModuleType(name)
    made.__file__ = {file!r}
    linecache.cache[made.__file__] = (len(SOURCE), None, SOURCE.splitlines(True), made.__file__)
    sys.modules[name] = made
    sys.argv[:] = [made.__file__]
    own, folder = os.path.dirname(os.path.abspath(__file__)), {folder!r}
    others = [each for each in sys.path if each not in (own, folder)]
    sys.path[:] = [folder, *others] if folder else [*others, os.getcwd()]
    torchyard, aio = types.ModuleType("torchyard"), types.ModuleType("torchyard.aio")
    torchyard.job = lambda function=None, **fields: function if function is not None else lambda inner: inner
    torchyard.aio = aio
    torchyard.__getattr__ = aio.__getattr__ = Absent.named
    kept = {{name: sys.modules.get(name) for name in ("torchyard", "torchyard.aio")}}
    sys.modules.update({{"torchyard": torchyard, "torchyard.aio": aio}})
    try:
        exec(compile(SOURCE, made.__file__, "exec"), made.__dict__)
    finally:
        for name, module in kept.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module
    return made


class Absent(Exception):
    """A name of TorchYard, which pods do without: it can be imported, caught and annotated with, and not be called."""

    @classmethod
    def named(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(cls)(name, (cls,), {{}})

    def __new__(cls, *args, **kwargs):
        raise RuntimeError(
            "torchyard." + cls.__name__ + " is called in a job, which has no TorchYard to call; "
            'put that into {file} under `if __name__ == "__main__":`'
        )


MODULE = module()  # also in processes that multiprocessing spawns, which unpickle classes of this module

if __name__ == "__main__":
    MODULE.{function}(**json.loads(ARGUMENTS[0]))
'''


class JobFunction(Generic[P, R]):
    """A function that can be run as a job. A direct call runs it in this process.

    Attributes:
        name: of its jobs.
        folder: folder of its module; `spec.workingDir` is relative to it.
    """

    def __init__(self, function: Callable[P, R], name: str | None, fields: Mapping[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.spec = _spec_of(function, fields)
        self.name = name or derived_name(function.__name__)
        file = _file_of(function)
        self.folder = file.parent if file is not None else Path.cwd()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function in this process."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<torchyard.job {self.name}: {self.function.__module__}.{self.function.__qualname__}>"

    def document(self, arguments: Mapping[str, Any], backend: Backend, notice: Notice = logged) -> dict[str, Any]:
        """Return the TrainingJob that calls the function.

        Args:
            arguments: keyword arguments of the function.
            backend: where the job will run; on this machine, it can import other modules from the folder.
            notice: called with warnings about what may fail in the pods.

        Raises:
            TorchYardError: the function or its arguments cannot be put into a job.
        """
        script = _script(self.function, backend, self.spec.get("image"), notice)
        size = len(script.encode())
        if size > MAX_SCRIPT_BYTES:
            what = (
                f"{self!r}: its source has {size / 1024:.0f} KiB; a job carries at most {MAX_SCRIPT_BYTES // 1024} KiB"
            )
            raise TorchYardError(what, "move code into a package in an image, and name it with image=")
        spec = {**self.spec, "script": script, "args": [_arguments(self.function, arguments)]}
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": self.name}, "spec": spec}


@overload
def job(function: Callable[P, R], /) -> JobFunction[P, R]: ...
@overload
def job(*, name: str | None = None, **fields: Any) -> Callable[[Callable[P, R]], JobFunction[P, R]]: ...
def job(
    function: Callable[P, R] | None = None, /, *, name: str | None = None, **fields: Any
) -> JobFunction[P, R] | Callable[[Callable[P, R]], JobFunction[P, R]]:
    """Use a function as the program of a job: `@ty.job(nodes=2, gpus_per_node=8)`.

    `ty.run(train, arguments={"lr": 1e-3})` then runs it on this machine, and `ty.submit(train, ...)` on a cluster.
    torchrun starts every rank, and every rank calls the function. The job contains the source of the function's module
    (at most 60 KiB); for a function that was defined in a notebook, the source of the function and the imports that it
    needs. The return value is ignored: write results into `$TORCHYARD_CHECKPOINT_DIR`.

    Args:
        function: at the top level of a module or notebook.
        name: of the jobs; by default the name of the function.
        fields: fields of the spec by their Python names (`gpus_per_node=8`, `image="..."`); sections as in a job file
            (`checkpoint={"volume": {"claim": "runs"}}`).

    Raises:
        TorchYardError: a field does not exist, or the function cannot be put into a job.
    """

    def decorate(inner: Callable[P, R]) -> JobFunction[P, R]:
        return JobFunction(inner, name, fields)

    return decorate(function) if function is not None else decorate


def _spec_of(function: Callable[..., Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec that the decorator asks for; refuse a function that no source can be taken of."""
    called = getattr(function, "__qualname__", repr(function))
    if not inspect.isfunction(function):
        raise TorchYardError(f"@torchyard.job: {called} is not a Python function", "decorate a function")
    decorated = hasattr(function, "__wrapped__")  # by functools.wraps; its module has it under this name
    nested = function.__qualname__ != function.__name__ or (function.__closure__ and not decorated)
    if function.__name__ == "<lambda>" or nested:
        what = f"@torchyard.job: {called} is a lambda, a method or defined inside another function"
        raise TorchYardError(what, "define it with `def` at the top level, and pass what it needs as arguments")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        fix = "decorate a plain function that calls it"
        raise TorchYardError(f"@torchyard.job: {called} is a coroutine or a generator", fix)
    by_position = [
        each.name
        for each in inspect.signature(function).parameters.values()
        if each.kind in {each.POSITIONAL_ONLY, each.VAR_POSITIONAL}
    ]
    if by_position:
        what = f"@torchyard.job: {called} takes {by_position[0]} by position only, and arguments travel by name"
        raise TorchYardError(what, "remove the `/` or `*` from its parameters")
    wire = dict(zip(TrainingJobSpec.__struct_fields__, TrainingJobSpec.__struct_encode_fields__, strict=True))
    for field in fields:
        if field not in wire or field in PROGRAM:
            near = nearest(field, wire.keys() - PROGRAM)
            fix = f"did you mean {near}?" if near else "docs/reference/trainingjob.md lists the fields of the spec"
            fix = "leave it out, the function is what is run" if field in PROGRAM else fix
            raise TorchYardError(f"@torchyard.job: {called}: there is no field {field!r}", fix)
    return {wire[field]: msgspec.to_builtins(value) for field, value in fields.items() if value is not None}


def _arguments(function: Callable[..., Any], arguments: Mapping[str, Any]) -> str:
    called = function.__name__
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        fix = f"it takes {inspect.signature(function)}"
        raise TorchYardError(f"arguments of {called}: {error}", fix) from error
    try:
        text = json.dumps(dict(arguments), allow_nan=False)
    except (TypeError, ValueError) as error:
        fix = "pass strings, numbers, booleans, lists, dicts and None"
        raise TorchYardError(f"arguments of {called} cannot be written as JSON: {error}", fix) from error
    if len(text) > MAX_ARGUMENTS:
        fix = "pass the path of a file that the pods can read"
        raise TorchYardError(f"arguments of {called} have {len(text)} characters of JSON, at most {MAX_ARGUMENTS}", fix)
    return text


def _script(function: Callable[..., Any], backend: Backend, image: object, notice: Notice) -> str:
    from torchyard.client.function_source import source_of_function, source_of_module

    file = _file_of(function)
    if file is None:
        module, shown, source = "notebook", "<notebook>", source_of_function(function)
        folder = Path.cwd()
    else:
        module, folder = file.stem, file.parent
        shown = str(file) if backend == "local" else file.name
        source = source_of_module(file, function.__name__, backend, image, notice)
    raw = source.endswith("\n") and "'''" not in source and "\0" not in source
    quoted = f"r'''{source}'''" if raw else repr(source)
    return _LAUNCHER.format(
        function=function.__name__,
        source=quoted,
        module=module,
        file=shown,
        folder=str(folder) if backend == "local" else None,
    )


def _file_of(function: Callable[..., Any]) -> Path | None:
    """Return the file of a function's module; None: it was typed into a notebook or a console."""
    path = getattr(sys.modules.get(function.__module__), "__file__", None)
    code = function.__code__.co_filename
    # Each cell of a notebook has its own file name, and `__main__` may have that of the kernel's launcher.
    return Path(path).absolute() if path is not None and Path(path).is_file() and Path(code).is_file() else None
