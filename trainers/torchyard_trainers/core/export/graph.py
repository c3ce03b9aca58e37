"""Formats `onnx` and `pt2`: a program as a graph, one file each, with a free batch dimension."""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from torchyard_trainers.core.export.bundle import ExportBundle
from torchyard_trainers.core.export.program import Program
from torchyard_trainers.core.export.verify import ExportError, Runner, UnwritableError, compare

# More would not change the trace; a batch of one would become a constant.
TRACED_CASES = 4
Tracer = Callable[[Program], Callable[[Path], None]]
Reader = Callable[[Program, Path], Runner]


def write_onnx(bundle: ExportBundle, folder: Path) -> dict[str, Any]:
    """Write `PROGRAM.onnx` for each program."""
    import onnx

    return _write(bundle, folder, "onnx", _to_onnx) | {"versions": {"onnx": onnx.__version__}}


def write_pt2(bundle: ExportBundle, folder: Path) -> dict[str, Any]:
    """Write `PROGRAM.pt2` for each program: load it with `torch.export.load`."""
    return _write(bundle, folder, "pt2", _to_pt2)


def verify_onnx(bundle: ExportBundle, folder: Path) -> dict[str, Any]:
    """Reload each program with ONNX Runtime on the CPU and compare. Raises `ExportError`."""
    return _verify(bundle, folder, "onnx", _from_onnx)


def verify_pt2(bundle: ExportBundle, folder: Path) -> dict[str, Any]:
    """Reload each program with `torch.export` and compare. Raises `ExportError`."""
    return _verify(bundle, folder, "pt2", _from_pt2)


def _write(bundle: ExportBundle, folder: Path, form: str, tracer: Tracer) -> dict[str, Any]:
    for name, program in bundle.programs.items():
        try:
            with _plain_torch():
                save = tracer(program)
        except (RuntimeError, TypeError, ValueError, AssertionError, NotImplementedError) as error:
            raise UnwritableError(
                f"export.formats: {form}: {name} cannot be written as a graph ({_root(error)}); leave {form} out"
            ) from error
        try:
            save(folder / f"{name}.{form}")
        except RuntimeError as error:  # raised by PyTorch for a full disk
            raise ExportError(f"{form} {name}: the graph cannot be saved ({_root(error)})") from error
    return {
        "programs": {
            name: {
                "file": f"{name}.{form}",
                "inputs": {key: _kind(tensor) for key, tensor in program.inputs.items()},
                "outputs": {
                    key: _kind(tensor) for key, tensor in zip(program.outputs, bundle.expected[name], strict=True)
                },
            }
            for name, program in bundle.programs.items()
        }
    }


def _verify(bundle: ExportBundle, folder: Path, form: str, reader: Reader) -> dict[str, Any]:
    verdicts = {}
    for name, program in bundle.programs.items():
        with _plain_torch():
            run = reader(program, folder / f"{name}.{form}")
            verdicts[name] = compare(f"{form} {name}", program, bundle.expected[name], run).report()
    return verdicts


def _traced(program: Program) -> tuple[tuple[Tensor, ...], tuple[dict[int, Any], ...]]:
    cases = torch.export.Dim("cases", min=1)
    inputs = tuple(tensor[:TRACED_CASES].clone() for tensor in program.inputs.values())
    return inputs, tuple({0: cases} for _ in inputs)


def _to_onnx(program: Program) -> Callable[[Path], None]:
    inputs, free = _traced(program)
    # A fused attention kernel has its own output layout, which the exporter does not expect.
    with sdpa_kernel(SDPBackend.MATH):
        graph = torch.onnx.export(
            program.module,
            inputs,
            input_names=list(program.inputs),
            output_names=list(program.outputs),
            dynamic_shapes=free,
            dynamo=True,
            verbose=False,
        )
    assert graph is not None
    return partial(graph.save, external_data=False)


def _from_onnx(program: Program, path: Path) -> Runner:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
        found = session.run(list(program.outputs), {name: tensor.numpy() for name, tensor in inputs.items()})
        return [torch.from_numpy(each) for each in found]

    return run


def _to_pt2(program: Program) -> Callable[[Path], None]:
    inputs, free = _traced(program)
    return partial(torch.export.save, torch.export.export(program.module, inputs, dynamic_shapes=free, strict=False))


def _from_pt2(_program: Program, path: Path) -> Runner:
    module = torch.export.load(path).module()

    @torch.no_grad()
    def run(inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
        found = module(*inputs.values())
        return [found] if isinstance(found, Tensor) else list(found)

    return run


def _root(error: BaseException) -> str:
    """Return the first line of the root error: exporters wrap it in advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"


def _kind(tensor: Tensor) -> dict[str, Any]:
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": ["cases", *tensor.shape[1:]]}


@contextmanager
def _plain_torch() -> Iterator[None]:
    """Allow non-deterministic algorithms during tracing: deterministic mode prevents some of its rewrites."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns about each optional library
    torch.use_deterministic_algorithms(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
