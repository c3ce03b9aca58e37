"""Counted floating-point operations: what the passes of one sample take, from the operators that really ran.

Only matrix products, convolutions and attention count (torch's FlopCounterMode), as in every published MFU; what is
computed again to save memory does not, since it teaches nothing.
"""

from torch.utils.flop_counter import FlopCounterMode

from torchyard_trainers.core.activations import keeping_activations
from torchyard_trainers.core.batching import Slots
from torchyard_trainers.core.graphs import eager_mode
from torchyard_trainers.core.step import accumulate
from torchyard_trainers.core.workload import Session, Workload, ids_of_step


def flops_of_sample(work: Workload, session: Session) -> int:
    """Return the FLOPs of forward and backward pass for one sample. Collective; its gradients are thrown away."""
    ids = ids_of_step(work, 0)
    counter = FlopCounterMode(display=False)
    pair = [Slots([0, 0], [1.0, 1.0])]  # BatchNorm refuses a single sample
    with eager_mode(compiled=True), keeping_activations(), session.parallel.buffers.kept():
        # What makes samples for many steps at once makes them here, where it does not count as one sample's.
        accumulate(work, session, ids, pair)
        with counter:
            accumulate(work, session, ids, pair)
    session.parallel.module.zero_grad(set_to_none=True)
    return int(counter.get_total_flops()) // 2
