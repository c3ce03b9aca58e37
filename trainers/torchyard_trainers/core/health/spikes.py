"""What to do about a spike: the policy of `health.spikes`, and the verdict whether data or hardware is at fault.

    ignore    nothing
    warn      a warning with the figures; the update is made
    rollback  the update is not made. Ranks are compared (`replicas.py`), and the run goes back to its newest checkpoint
              and repeats the steps. What comes again, with the same bits, comes from the samples or from the numbers:
              the step then counts without an update. What does not come again was the hardware.

With `rollback`, a value that is not finite is a spike, too, unless `health.nonFinite` is `skip`.
"""

import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from torchyard_trainers.core.checkpoints.saver import Saver
from torchyard_trainers.core.config import Config
from torchyard_trainers.core.exits import DivergedError
from torchyard_trainers.core.health import replicas
from torchyard_trainers.core.health.detector import Detector
from torchyard_trainers.core.health.guard import ADVICE, Decision, Guard
from torchyard_trainers.core.health.replicas import Verdict
from torchyard_trainers.core.step import Totals
from torchyard_trainers.core.workload import Session, Workload

# Steps between two warnings of spikes that are only reported.
QUIET_STEPS = 100
# So many steps in a row that are left out are no bad samples: the weights are, and an older checkpoint is tried.
BAD_STEPS_IN_A_ROW = 3
# Weights of replicas are compared once in so many steps.
PROBE_STEPS = 5
# Steps that are left out of the newest thousand, after which the run has diverged.
MOST_LEFT_OUT, RECENT = 20, 1000


class Pass(NamedTuple):
    """What a step came to: the loss of this rank's samples, the loss and the gradient norm of all."""

    own: float
    loss: float
    norm: float


ON = Decision(back=False)


class Spikes:
    """Applies the policies for spikes and for values that are not finite to the steps of one round."""

    def __init__(self, config: Config, step: int, state: Mapping[str, Any]) -> None:
        """Start with no fault, at a step, with what its checkpoint has kept."""
        self.policy = config.health.spikes
        self._exact = config.parallelism.deterministic
        self._takes_non_finite = self.policy == "rollback" and config.health.non_finite != "skip"
        self._guard = Guard(config.health.non_finite)
        self._detector = Detector()
        self._passes: dict[int, Pass] = {}  # of the steps since the newest checkpoint that a replay is compared with
        self._replayed = 0  # the step that a replay leads to; 0: there is none
        self._differs: int | None = None  # the first step at which this rank computed another loss than before
        self._evidence = ""
        self._compared = False  # by another rank, on the way to this replay
        self._started_at = step  # of the newest restore
        self._left_out: list[int] = []
        self._hardware = 0
        self._tried_older = False
        self._warned = -QUIET_STEPS
        self._comparable: bool | None = None  # not known before the first step
        self._diverged = False  # replicas did, and it was said
        self._detector.load(state)

    def judge(self, loss: float, norm: float) -> str:
        """Return the evidence of a spike whose update must not be made."""
        return self._detector.spike(loss, norm) if self.policy == "rollback" else ""

    def probe(self, session: Session, step: int) -> Tensor | None:
        """Return what a step sums over the ranks to see whether their weights are the same; None: nothing now.

        Collective at the first call.
        """
        if self._comparable is None:
            self._comparable = self.policy != "ignore" and replicas.are_comparable(session)
        return replicas.probe(session) if self._comparable and step % PROBE_STEPS == 0 else None

    def after(self, work: Workload, session: Session, done: int, totals: Totals, saver: Saver) -> Decision:
        """Decide what follows a step. Collective if it is a spike.

        Args:
            work: the workload.
            session: its model.
            done: finished steps.
            totals: of the step.
            saver: of the run's checkpoints.

        Raises:
            DivergedError: the run has failed.
            HardwareError, PeerError: the hardware of this rank, or of another one, is at fault.
        """
        loss, norm = totals.metrics.get("loss", 0.0), totals.metrics["gradNorm"]
        fault = totals.spike or (totals.fault if self._takes_non_finite else "")
        if totals.fault and not fault:
            back = self._guard.rolls_back(done, totals.fault)
            if back:
                saver.wait()
            return Decision(back, f"step {done}: {totals.fault}")
        self._guard.rolls_back(done, "", overflowed=totals.overflowed)
        if not replicas.is_alike(totals.probe, session.world.size):
            self._check_weights(session, done)
        if self.policy == "warn":
            self._warn(session, done, loss, norm)
        if self.policy != "rollback":
            self._note(loss, norm)
            return ON
        this = Pass(totals.own_loss, loss, norm)
        self._compare(done, this)
        if not fault:
            self._note(loss, norm)
        if done == self._replayed:
            return self._judge_replay(work, session, done, fault)
        if not fault or done in self._left_out:
            return ON
        return self._first(work, session, done, fault, saver)

    def went_back(self, step: int, state: Mapping[str, Any]) -> None:
        """Continue from the state of a checkpoint, after a restore of it."""
        self._started_at = step
        self._detector.load(state)

    def before_save(self, session: Session, done: int) -> dict[str, Any]:
        """Check the weights, and return what the checkpoint of this step keeps. Collective.

        Raises:
            HardwareError, PeerError: weights of replicas differ, and the policy is `rollback`.
        """
        if self.policy == "ignore":
            return {}
        self._check_weights(session, done)
        if not self._replayed:  # no replay begins before this checkpoint, but for one that cannot be read
            self._passes = {step: each for step, each in self._passes.items() if step > done - RECENT}
        return self._detector.state()

    @property
    def metrics(self) -> dict[str, float]:
        """Return `skippedSteps` once there are any."""
        skipped = self._guard.metrics.get("skippedSteps", 0.0) + len(self._left_out)
        return {"skippedSteps": skipped} if skipped else {}

    def _check_weights(self, session: Session, done: int) -> None:
        """Compare the weights of replicas: a checkpoint must not hold those of a broken one."""
        if not self._comparable or self._diverged:
            return
        verdict = replicas.different_weights(session)
        if verdict.ranks and self.policy == "rollback":
            raise replicas.fault_of(session.world, verdict._replace(text=f"step {done}: {verdict.text}"))
        if verdict.ranks:
            self._diverged = True
            advice = "its hardware has changed them; test it, and go back to a checkpoint before this step"
            session.reporter.warn(f"step {done}: {verdict.text}: {advice}")

    def _note(self, loss: float, norm: float) -> None:
        if self.policy != "ignore":
            self._detector.note(loss, norm)

    def _warn(self, session: Session, done: int, loss: float, norm: float) -> None:
        evidence = self._detector.spike(loss, norm)
        if evidence and done - self._warned >= QUIET_STEPS:
            self._warned = done
            session.reporter.warn(f"step {done}: {evidence}; spec.health.spikes: rollback leaves such steps out")

    def _compare(self, done: int, this: Pass) -> None:
        before = self._passes.get(done)
        if before is None or done > self._replayed:
            self._passes[done] = this
        elif self._differs is None and _bits(before) != _bits(this):
            self._differs = done

    def _first(self, work: Workload, session: Session, done: int, fault: str, saver: Saver) -> Decision:
        """Compare the ranks, and go back to see whether the spike comes again."""
        self._compared = self._compare_ranks(work, session, done, fault)
        if not saver.settle():
            why = "there is no checkpoint yet to go back to, so that data and hardware cannot be distinguished"
            return self._leave_out(session, done, f"step {done}: {fault}; {why}. The step is left out")
        self._replayed, self._differs, self._evidence = done, None, fault
        if self._in_a_row(done) >= BAD_STEPS_IN_A_ROW and not self._tried_older:
            self._tried_older = True
            return Decision(back=True, fault=f"step {done}: {fault}", before=self._started_at)
        return Decision(back=True, fault=f"step {done}: {fault}")

    def _compare_ranks(self, work: Workload, session: Session, done: int, fault: str) -> bool:
        """Return whether another rank has computed the same from the same samples; a difference ends the round."""
        if not self._comparable:
            return False
        weights = replicas.different_weights(session)
        losses = None
        if not weights.ranks and self._exact:
            losses = replicas.different_losses(work, session, done - 1, self._passes[done].own)
        for verdict in (weights, losses or Verdict()):
            if verdict.ranks:
                text = f"step {done}: {fault}; {verdict.text}"
                raise replicas.fault_of(session.world, verdict._replace(text=text))
        return losses is not None

    def _judge_replay(self, work: Workload, session: Session, done: int, fault: str) -> Decision:
        """Decide which it was: a spike that comes again with the same bits is not the hardware's."""
        self._replayed = 0
        differing = session.world.gather((self._differs, socket.gethostname()))
        first = min((step for step, _ in differing if step is not None), default=None)
        again = f"step {done}: {fault or self._evidence}; replayed from step {self._started_at},"
        if fault:
            same = "with the same bits " if first is None else ""
            where = "and as other ranks compute it" if self._compared else "on the same hardware"
            text = f"{again} it came again, {same}{where}: the samples or the numbers of the model"
            return self._leave_out(session, done, f"{text}. The step is left out")
        if not self._exact or replicas.has_own_samples(work):
            session.reporter.warn(f"{again} it did not come again: the hardware, or randomness that no seed fixes")
            return ON
        ranks = tuple(rank for rank, (step, _) in enumerate(differing) if step is not None and step == first)
        # Where all ranks differ at once, one of them has put something wrong into a sum.
        known = ranks if len(ranks) < session.world.size or session.world.size == 1 else ()
        hosts = [host for _, host in differing]
        who = replicas.named(session.world, known, hosts) if known else "gradients or their sum over the ranks"
        verdict = Verdict(known, f"{again} it did not come again: the hardware ({who}) computed wrongly")
        self._hardware += 1
        if self._hardware > 1:
            raise replicas.fault_of(session.world, verdict._replace(text=f"{verdict.text}, the second time"))
        session.reporter.warn(f"{verdict.text}. The same again ends the round")
        return ON

    def _leave_out(self, session: Session, done: int, text: str) -> Decision:
        self._left_out.append(done)
        session.reporter.warn(text)
        if sum(step > done - RECENT for step in self._left_out) > MOST_LEFT_OUT or (
            self._tried_older and self._in_a_row(done + 1) > BAD_STEPS_IN_A_ROW
        ):
            raise DivergedError(f"{text}; {len(self._left_out)} steps were left out; {ADVICE}")
        return ON

    def _in_a_row(self, done: int) -> int:
        """Return how many steps right before this one were left out."""
        count = 0
        while done - 1 - count in self._left_out:
            count += 1
        return count


def _bits(each: Pass) -> tuple[str, ...]:
    """Return values so that NaN equals itself: what this rank computed alone, from weights that all had alike."""
    return (each.own.hex(),)
