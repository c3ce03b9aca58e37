"""Which jobs are trials that the operator created: a signature on each, by a key that the sweep's status names.

A name, a label, an owner reference and an annotation can be written by every user who may create jobs in the namespace;
the status of a sweep cannot. So the operator adds its public key to `status.trialKeys` before it creates or edits the
first trial, and signs the record of the trial together with the sweep, the name, and the moment of creation or the uid.
A record that was changed, or copied to another name or sweep, or to a job that was created later, is not valid.
"""

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from torchyard.api.names import TRIAL, TRIAL_SIGNATURE
from torchyard.api.resource import ObjectMeta
from torchyard.kubernetes.provenance import EARLY_SECONDS, LATE_SECONDS, key_from, raw_of, text_of
from torchyard.sweeps.resource import TrainingSweep
from torchyard.sweeps.trials import is_owned

MAX_REMEMBERED = 16384
_AT = "at-"


class TrialProvenance:
    """Sign the records of trials, and recognize those that an operator signed.

    Args:
        clock: unix seconds of the API server.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._private = Ed25519PrivateKey.generate()
        self.public_key = text_of(self._private.public_key().public_bytes_raw())
        """The public key by which readers verify the signatures of this process."""
        self._used: OrderedDict[str, str] = OrderedDict()  # signature -> uid: annotations can be copied
        self._accepted: OrderedDict[tuple[str, str, str, bytes], bool] = OrderedDict()

    def sign(self, sweep: TrainingSweep, name: str, record: str, *, uid: str = "") -> str:
        """Return the signature for a record.

        Args:
            sweep: of the trial.
            name: of the trial's job.
            record: text of its annotation.
            uid: of the job; empty: it is about to be created.
        """
        bound = uid or f"{_AT}{self._clock():.0f}-{secrets.token_hex(3)}"  # a trial may be created again in a second
        signature = self._private.sign(_payload(sweep, name, record, bound))
        return f"{self.public_key}.{bound}.{text_of(signature)}"

    def is_trial(self, sweep: TrainingSweep, job: ObjectMeta) -> bool:
        """Return whether an operator created this job as a trial of this sweep, and its record is unchanged."""
        if not is_owned(sweep, job):
            return False
        signature, record = (str(job.annotations.get(name, "")) for name in (TRIAL_SIGNATURE, TRIAL))
        if not _is_trusted(signature, sweep.status.trial_keys):
            return False
        asked = (sweep.metadata.uid, job.uid, signature, hashlib.sha256(record.encode()).digest())
        if (accepted := self._accepted.get(asked)) is None:
            accepted = self._accepted[asked] = _is_signed(sweep, job, signature, record)
            if len(self._accepted) > MAX_REMEMBERED:
                self._accepted.popitem(last=False)
        return accepted and self.spend(signature, job.uid) == job.uid

    def spend(self, signature: str, uid: str) -> str:
        """Return the uid of the job on which this signature is spent: this one, if it was not spent before."""
        spent_on = self._used.setdefault(signature, uid)
        if len(self._used) > MAX_REMEMBERED:
            self._used.popitem(last=False)
        return spent_on


def signer_of(job: ObjectMeta) -> str:
    """Return the public key that the record of a trial says it is signed by."""
    return str(job.annotations.get(TRIAL_SIGNATURE, "")).partition(".")[0]


def _is_trusted(signature: str, keys: Collection[str]) -> bool:
    return signature.partition(".")[0] in keys


def _is_signed(sweep: TrainingSweep, job: ObjectMeta, signature: str, record: str) -> bool:
    public_key, _, rest = signature.partition(".")
    bound, _, signed = rest.partition(".")
    key = key_from(public_key)
    if key is None or not _is_bound(job, bound):
        return False
    try:
        key.verify(raw_of(signed), _payload(sweep, job.name, record, bound))
    except (InvalidSignature, ValueError):
        return False
    return True


def _is_bound(job: ObjectMeta, bound: str) -> bool:
    """Return whether a signature is for this job: by its uid, or by the moment in which it was created."""
    if not bound.startswith(_AT):
        return bound == job.uid
    seconds = bound.removeprefix(_AT).partition("-")[0]
    if job.creation_timestamp is None or not (seconds.isascii() and seconds.isdigit() and len(seconds) < 12):
        return False
    return -EARLY_SECONDS <= float(job.creation_timestamp) - int(seconds) <= LATE_SECONDS


def _payload(sweep: TrainingSweep, name: str, record: str, bound: str) -> bytes:
    meta = sweep.metadata
    return f"torchyard.dev/trial\n{meta.namespace}\n{meta.uid}\n{name}\n{bound}\n{record}".encode()
