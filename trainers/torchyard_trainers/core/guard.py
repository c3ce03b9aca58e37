"""What a loss or gradient norm that is not finite does to a run. Pure: every rank sees the same sums and decides alike.

The update of such a step is never made, whatever the policy:
    fail      the run ends with 66
    skip      the step counts as made without an update
    rollback  the run goes back to its newest checkpoint and makes the steps again: what a fault of the machine broke
              comes right, what the numbers themselves break comes again and ends the run
"""

from typing import Literal

from torchyard_trainers.core.exits import DivergedError

ADVICE = "lower params.lr or use precision fp32"
# A model that is lost for good gives no finite step any more; a few bad batches pass.
SKIPS_IN_A_ROW = 10


class Guard:
    """Judges the steps of one round."""

    def __init__(self, policy: Literal["fail", "skip", "rollback"]) -> None:
        """Start with no fault."""
        self._policy = policy
        self._skipped = 0
        self._in_a_row = 0
        self._rolled_back_from = 0

    def rolls_back(self, step: int, fault: str) -> bool:
        """Judge a step by its fault ("": none): whether to go back to the newest checkpoint, or else go on.

        Raises:
            DivergedError: the run is over.
        """
        if not fault:
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
