"""The policy for a non-finite loss or gradient norm. Pure: all ranks see the same sums and decide alike.

No policy applies the update of such a step:
    fail      the run ends with 66
    skip      the step counts, without an update
    rollback  the run returns to its newest checkpoint and repeats the steps: a fault of the machine does not occur
              again, a fault of the numbers does and ends the run
"""

from typing import Literal, NamedTuple

from torchyard_trainers.core.exits import DivergedError

ADVICE = "lower params.lr or use precision fp32"
# A diverged model produces only non-finite steps; a few bad batches pass.
SKIPS_IN_A_ROW = 10


class Decision(NamedTuple):
    """Whether a run goes back, why, and to a checkpoint of a step before which; None: to the newest."""

    back: bool
    fault: str = ""
    before: int | None = None


class Guard:
    """Applies the policy to the steps of one round."""

    def __init__(self, policy: Literal["fail", "skip", "rollback"]) -> None:
        """Start with no fault."""
        self._policy = policy
        self._skipped = 0
        self._in_a_row = 0
        self._rolled_back_from = 0

    def rolls_back(self, step: int, fault: str, *, overflowed: bool = False) -> bool:
        """Return whether to roll back after a step with this fault ("": none).

        Args:
            step: finished steps.
            fault: which value was not finite.
            overflowed: gradients did in fp16, so that only the loss scale was changed; under every policy, such a step
                counts as skipped.

        Raises:
            DivergedError: the run has failed.
        """
        if not fault:
            self._skipped += overflowed
            self._in_a_row = 0
            return False
        if self._policy == "skip":
            self._skipped, self._in_a_row = self._skipped + 1, self._in_a_row + 1
            if self._in_a_row < SKIPS_IN_A_ROW:
                return False
            fault = f"{fault}, {SKIPS_IN_A_ROW} steps in a row"
        elif self._policy == "rollback":
            if step > self._rolled_back_from:
                self._rolled_back_from = step
                return True
            fault = f"{fault}, again after going back from step {self._rolled_back_from}"
        raise DivergedError(f"step {step}: {fault}; {ADVICE}")

    @property
    def metrics(self) -> dict[str, float]:
        """Return `skippedSteps` once there are any."""
        return {"skippedSteps": float(self._skipped)} if self._skipped else {}
