"""Learning-rate schedules: pure functions of the step, so that a resumed run needs no scheduler state."""

import math
from typing import Literal

Kind = Literal["constant", "cosine", "linear", "wsd"]


def factor(kind: Kind, step: int, total: int, *, warm_up: int = 0, final: float = 0.0, decay: float = 0.2) -> float:
    """Return the factor of the peak learning rate at `step` (0 is the first) of `total` steps.

    The rate rises linearly over `warm_up` steps; the first step has a rate above 0, and step `warm_up` the peak. The
    last step has the factor `final`, except for `constant`, and except for an only step, which has the peak.

    Args:
        kind: `constant`; `cosine` and `linear` fall from the end of the warm-up; `wsd` (warm-up, stable, decay) stays
            at the peak and falls linearly over the last steps.
        step: 0 is the first; steps after the last one keep its factor.
        total: steps of the run.
        warm_up: steps.
        final: factor of the last step.
        decay: of `wsd`: the share of `total` (float), or the number of steps (int), over which the rate falls.

    Raises:
        ValueError: the warm-up, or the warm-up and the decay, take more steps than there are.
    """
    falling = (math.ceil(decay * total) if isinstance(decay, float) else decay) if kind == "wsd" else 0
    if warm_up + falling > total:
        after = f" and decay of {falling}" if falling else ""
        raise ValueError(f"a warm-up of {warm_up} steps{after} does not fit into {total} steps; shorten it")
    if step < warm_up:
        return (step + 1) / (warm_up + 1)
    peak = max(total - falling - 1, 0) if kind == "wsd" else warm_up  # the last step at the peak
    if kind == "constant" or step <= peak:
        return 1.0
    share = min((step - peak) / max(total - 1 - peak, 1), 1.0)
    falls = 0.5 * (1 + math.cos(math.pi * share)) if kind == "cosine" else 1.0 - share
    return final + (1.0 - final) * falls
