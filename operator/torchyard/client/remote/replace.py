"""Replace a job of a cluster by another one of its name: `torchyard submit --replace`."""

import asyncio
from typing import Any

import msgspec

from torchyard.api.names import CODE_ARRIVED
from torchyard.api.resource import TrainingJob
from torchyard.api.spec_code import Code
from torchyard.api.status import State
from torchyard.client.backend import Away, Document, Notice
from torchyard.client.bundle.attach import Packed
from torchyard.client.errors import FAILED, TorchYardError
from torchyard.client.remote import jobs, watch
from torchyard.client.remote.code_upload import owner_of, release, upload
from torchyard.client.remote.push import push
from torchyard.client.remote.session import Remote
from torchyard.client.replacement import Replacement, replacement
from torchyard.kubernetes.client.api import MERGE_PATCH
from torchyard.reconcile.code import code_at, missing_code
from torchyard.reconcile.observed import Pod


async def replace(remote: Remote, stored: Document, new: TrainingJob, code: Packed | None, notice: Notice) -> Document:
    """Turn a job that has not ended into `new`; return it.

    With only its code, command, args or env edited, a running job saves and continues with them in the same pods, into
    which the code is pushed. Otherwise it gets new pods.

    Args:
        remote: the cluster.
        stored: the job as it is.
        new: as it was submitted.
        code: that travels with it.
        notice: called with what happens and why.

    Raises:
        TorchYardError: fields differ that never change, or the job ended or was deleted in between.
    """
    old = jobs.typed(stored)
    plan = replacement(old, new, remote.flags)
    if not plan.fields and not missing_code(old):
        notice(f"torchyard: {old.metadata.name} runs this already: nothing differs")
        return stored
    pods = await jobs.pods(remote, old)
    sent = await _send(remote, stored, old, pods, code, plan, notice)
    if plan.fixed and not old.spec.suspend:
        await _suspended(remote, old, notice, f"{', '.join(f'spec.{each}' for each in plan.fixed)} changed")
        plan.spec["suspend"] = False
    body: dict[str, Any] = {"spec": plan.spec}
    if sent is not None:
        body["metadata"] = {"annotations": {CODE_ARRIVED: sent}}
    path = jobs.job_path(remote, old.metadata.name)
    answer = await remote.api.request("PATCH", path, body=body, content_type=MERGE_PATCH)
    await _release(remote, old, old.spec.code, pods, sent)
    document: Document = msgspec.json.decode(answer)
    return document


async def _send(  # noqa: PLR0917 -- what is there, what comes, and how
    remote: Remote,
    stored: Document,
    old: TrainingJob,
    pods: list[Pod],
    code: Packed | None,
    plan: Replacement,
    notice: Notice,
) -> str | None:
    """Store the code where new pods find it, and push it into those that can go on; return its digest."""
    name = old.metadata.name
    running = [pod for pod in pods if pod.phase == "Running" and not pod.deleting]
    digest = code.bundle.digest if code is not None and code.bundle is not None else None
    moves = digest is not None and (old.spec.code is None or old.spec.code.digest != digest)
    goes_on = bool(running) and not plan.new_pods and not plan.fixed and not old.spec.suspend
    storing = upload(remote, owner_of(stored), digest, code.parts) if code is not None and digest is not None else None
    if goes_on and moves and code is not None and digest is not None and storing is not None:
        allowed, _ = await asyncio.gather(push(remote, running, digest, code.parts, notice), storing)
        if allowed:
            notice(f"torchyard: {name} saves and continues with the new code in its {len(running)} running pods")
        else:
            notice(f"torchyard: {name} saves and gets new pods: you may not execute commands in its pods (pods/exec)")
        return digest
    if storing is not None:
        await storing
    if goes_on:
        notice(f"torchyard: {name} saves and continues in its {len(running)} running pods: {_named(plan)} changed")
    elif running and not plan.fixed and not old.spec.suspend:
        notice(f"torchyard: {name} saves and gets new pods, since {plan.new_pods}")
    return digest


async def _suspended(remote: Remote, old: TrainingJob, notice: Notice, why: str) -> None:
    """Suspend a job, and return once its pods are gone."""
    name = old.metadata.name
    notice(f"torchyard: {name} is suspended and gets new pods, since {why}; it saves first")
    await jobs.set_suspend(remote, name, suspend=True)
    async for seen in watch.states(remote, name, old.metadata.uid):
        if seen is None or (not isinstance(seen, Away) and seen.status.state.terminal):
            raise TorchYardError(f"{name} ended before it could be replaced", "submit it again", FAILED)
        if not isinstance(seen, Away) and seen.status.state is State.SUSPENDED:
            return


async def _release(remote: Remote, old: TrainingJob, former: Code | None, pods: list[Pod], now: str | None) -> None:
    """Release the former code, unless a pod was created with it: its node may mount it again."""
    if former is None or former.digest is None or former.digest == now:
        return
    if not any(former.digest.startswith(code_at(pod.configuration) or "-") for pod in pods):
        await release(remote, old.metadata.uid, former.digest, former.parts)


def _named(plan: Replacement) -> str:
    return ", ".join(f"spec.{field}" for field in plan.fields)
