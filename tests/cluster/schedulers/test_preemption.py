"""Real agents and a real trainer under a preemption."""

import pytest
from tests.support.cluster.gangs import served
from tests.support.cluster.preemption import contest


@pytest.mark.parametrize("operator", [{"flags": ("--schedulers", "kueue")}], indirect=True)
async def test_a_preempted_training_resumes_at_the_step_it_had(api, namespace, operator):
    await served(api, "kueue")
    async with contest(api, namespace, "kueue") as one:
        loss = await one.preempt()
    assert (loss.repeated, loss.charged) == (0, False)
    assert loss.made > 0
