"""Peak FLOP/s of accelerators by their CUDA name. A device that is not listed has no known peak.

Dense figures without sparsity, at full power, from the vendor's data sheets; fp32 is the figure of the CUDA cores,
since matrix products of training use full fp32 unless the user lowers the precision.
"""

import re
from typing import NamedTuple


class Peak(NamedTuple):
    """Floating-point operations per second."""

    half: float  # bf16 and fp16 with fp32 accumulation, tensor cores
    single: float  # fp32


_T = 1e12
_PEAKS: tuple[tuple[str, Peak], ...] = (
    (r"B200", Peak(2250 * _T, 75 * _T)),
    (r"(H200|H100) NVL", Peak(835 * _T, 60 * _T)),
    (r"H100 PCIe", Peak(756 * _T, 51.2 * _T)),
    (r"GH200.*|H200|H100( 80GB HBM3| SXM5.*)?", Peak(989.4 * _T, 66.9 * _T)),
    (r"A100.*", Peak(312 * _T, 19.5 * _T)),
    (r"A10", Peak(125 * _T, 31.2 * _T)),
    (r"L40S", Peak(362 * _T, 91.6 * _T)),
    (r"L40", Peak(181 * _T, 90.5 * _T)),
    (r"L4", Peak(121 * _T, 30.3 * _T)),
    (r"V100-SXM2.*", Peak(125 * _T, 15.7 * _T)),
    (r"T4", Peak(65 * _T, 8.1 * _T)),
    (r"GeForce RTX 4090", Peak(165.2 * _T, 82.6 * _T)),
    (r"GeForce RTX 3090", Peak(71 * _T, 35.6 * _T)),
)
_MAKER = re.compile(r"^(NVIDIA|Tesla) ")
_SLICE = re.compile(r" MIG \d")


def peak_of(device_name: str, precision: str) -> float | None:
    """Return the most FLOP/s of a device in a precision (`fp32`, `bf16` or `fp16`); None if unknown.

    A MIG slice has its own name and no entry here: its share depends on how the GPU was partitioned.
    """
    if _SLICE.search(device_name):
        return None
    name = _MAKER.sub("", device_name)
    for pattern, peak in _PEAKS:
        if re.fullmatch(pattern, name):
            return peak.single if precision == "fp32" else peak.half
    return None
