"""Published mean tour lengths on the standard instances, to compare with. Imports no torch.

Source: Shi and Niu, "A Brief Survey on Learning Based Methods for Vehicle Routing Problems", Procedia Computer Science
221 (2023) 773-780, its table of CVRP results. Instances of Kool 2019: 10,000, uniform, demands 1 to 9. They are drawn
from the same distribution as the evaluation set here, not the same ones: means of 10,000 differ by about 0.1 %.
"""

from typing import NamedTuple


class Figure(NamedTuple):
    """One row of the table: mean lengths by number of customers."""

    method: str
    mean: dict[int, float]


CAPACITIES = {20: 30, 50: 40, 100: 50}
REFERENCE = Figure("LKH3", {20: 6.11, 50: 10.38, 100: 15.68})
FIGURES = (
    REFERENCE,
    Figure("attention model (Kool 2019), greedy", {20: 6.40, 50: 10.98, 100: 16.76}),
    Figure("attention model (Kool 2019), best of 1280 samples", {20: 6.27, 50: 10.62, 100: 16.24}),
    Figure("POMO (Kwon 2020), one start a customer", {20: 6.17, 50: 10.49, 100: 15.83}),
    Figure("POMO (Kwon 2020), 8 symmetries", {20: 6.14, 50: 10.42, 100: 15.73}),
)


def reference(customers: int, capacity: int, distribution: str) -> float | None:
    """Return LKH3's mean length for a standard problem; None: nothing was published for this one."""
    if distribution != "uniform" or CAPACITIES.get(customers) != capacity:
        return None
    return REFERENCE.mean[customers]


def why_none(customers: int, capacity: int, distribution: str) -> str | None:
    """Return why no published mean applies to this problem; None if one does."""
    if reference(customers, capacity, distribution) is not None:
        return None
    if distribution == "uniform" and customers in CAPACITIES:
        return f"no published means: those of {customers} customers are for capacity {CAPACITIES[customers]}"
    sizes = ", ".join(f"{count} customers and capacity {held}" for count, held in CAPACITIES.items())
    return f"no published means: they are for uniform instances of {sizes}"
