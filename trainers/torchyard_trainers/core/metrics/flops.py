"""Floating-point operations of the passes of one sample, counted from the operators that run.

Only matrix products, convolutions and attention count (torch's FlopCounterMode), as in every published MFU;
recomputation does not count.
"""

from torch.utils.flop_counter import FlopCounterMode

from torchyard_trainers.core.activations import keeping_activations
from torchyard_trainers.core.batching import Slots
from torchyard_trainers.core.graphs import eager_mode
from torchyard_trainers.core.step import accumulate
from torchyard_trainers.core.workload import Session, Workload, ids_of_step


def flops_of_sample(work: Workload, session: Session, step: int) -> int:
    """Return the FLOPs of forward and backward pass for one sample of a step that is prepared; leave no gradients.

    Collective.
    """
    ids = ids_of_step(work, step)
    counter = FlopCounterMode(display=False)
    pair = [Slots([0, 0], [1.0, 1.0])]  # BatchNorm refuses a single sample
    with eager_mode(compiled=True), keeping_activations(), session.parallel.buffers.kept():
        # Workloads that create samples for many steps at once do it here, outside of the counted pass.
        accumulate(work, session, ids, pair, step)
        with counter:
            accumulate(work, session, ids, pair, step)
    session.parallel.module.zero_grad(set_to_none=True)
    return int(counter.get_total_flops()) // 2
