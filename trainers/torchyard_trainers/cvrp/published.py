"""Published mean tour lengths on the standard instances, to compare with. Imports no torch.

Sources: Kool, van Hoof and Welling, "Attention, Learn to Solve Routing Problems!", ICLR 2019, table 1, for the
attention model, insertion and Concorde; Kwon et al., "POMO: Policy Optimization with Multiple Optima for
Reinforcement Learning", NeurIPS 2020, table 2 (TSP) and table 3 (CVRP), for POMO and for LKH3 on CVRP. Instances of
Kool 2019: 10,000, uniform, demands 1 to 9. They are drawn from the same distribution as the evaluation set here, not
the same ones: means of 10,000 differ by about 0.1 %, and those of the 1,000 instances here by about 0.3 %. Table 2
has 3.83 and 5.69 for Concorde with 20 and 50 cities, on other instances; so its lengths of POMO look better than they
are beside Kool's by 0.2 %.
"""

from typing import NamedTuple


class Figure(NamedTuple):
    """One row of the table: mean lengths by number of customers."""

    method: str
    mean: dict[int, float]


CAPACITIES = {20: 30, 50: 40, 100: 50}
REFERENCE = Figure("LKH3", {20: 6.12, 50: 10.38, 100: 15.68})
FIGURES = (
    REFERENCE,
    Figure("attention model (Kool 2019), greedy", {20: 6.40, 50: 10.98, 100: 16.80}),
    Figure("attention model (Kool 2019), best of 1280 samples", {20: 6.25, 50: 10.62, 100: 16.23}),
    Figure("POMO (Kwon 2020), one start a customer", {20: 6.17, 50: 10.49, 100: 15.83}),
    Figure("POMO (Kwon 2020), 8 symmetries", {20: 6.14, 50: 10.42, 100: 15.73}),
)

OPTIMUM = Figure("optimum (Concorde)", {20: 3.84, 50: 5.70, 100: 7.76})
FIGURES_TSP = (
    OPTIMUM,
    Figure("farthest insertion", {20: 3.93, 50: 6.01, 100: 8.35}),
    Figure("attention model (Kool 2019), greedy", {20: 3.85, 50: 5.80, 100: 8.12}),
    Figure("attention model (Kool 2019), best of 1280 samples", {20: 3.84, 50: 5.73, 100: 7.94}),
    Figure("POMO (Kwon 2020), one start a city", {20: 3.83, 50: 5.70, 100: 7.80}),
    Figure("POMO (Kwon 2020), 8 symmetries", {20: 3.83, 50: 5.69, 100: 7.77}),
)


def figures(customers: int, capacity: int, distribution: str, problem: str = "cvrp") -> tuple[Figure, ...]:
    """Return what was published for a standard problem, the reference first; (): nothing."""
    if distribution == "uniform" and problem == "tsp" and customers in OPTIMUM.mean:
        return FIGURES_TSP
    if distribution == "uniform" and problem == "cvrp" and CAPACITIES.get(customers) == capacity:
        return FIGURES
    return ()


def reference(customers: int, capacity: int, distribution: str, problem: str = "cvrp") -> float | None:
    """Return the mean length of the reference for a standard problem; None: nothing was published for this one."""
    known = figures(customers, capacity, distribution, problem)
    return known[0].mean[customers] if known else None


def why_none(customers: int, capacity: int, distribution: str, problem: str = "cvrp") -> str | None:
    """Return why no published mean applies to this problem; None if one does."""
    if reference(customers, capacity, distribution, problem) is not None:
        return None
    if problem == "tsp":
        return f"no published means: they are for {', '.join(map(str, OPTIMUM.mean))} uniform cities"
    if problem != "cvrp":
        return f"no published means of {problem} are known here"
    if distribution == "uniform" and customers in CAPACITIES:
        return f"no published means: those of {customers} customers are for capacity {CAPACITIES[customers]}"
    sizes = ", ".join(f"{count} customers and capacity {held}" for count, held in CAPACITIES.items())
    return f"no published means: they are for uniform instances of {sizes}"
