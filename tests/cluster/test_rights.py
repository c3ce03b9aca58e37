"""Rights of the operator that are taken away while it runs, and given back."""

from tests.support.cluster.jobs import SLEEPS, Jobs
from tests.support.cluster.operators import until
from tests.support.cluster.rights import Rights

ONE = {"command": SLEEPS, "nodes": 1, "gracePeriod": "2s"}


async def test_a_missing_right_is_named_and_work_continues_once_it_is_granted(api, namespace, make_operator, tmp_path):
    jobs = Jobs(api, namespace)
    async with Rights(api, namespace).given() as rights:
        operator = make_operator(kubeconfig=rights.kubeconfig(tmp_path / "bound"))
        operator.start()
        await until(operator.leads, why=lambda: operator.log.read_text()[-3000:])
        await jobs.submit("before", **ONE)
        await jobs.until("before", lambda now: now.get("round") == 1)

        await rights.take("create")
        await jobs.submit("new", **ONE)
        status = await jobs.until("new", lambda now: now.get("reason") == "Forbidden")
        assert f"create pods in namespace {namespace}" in status["message"]
        assert status["message"].endswith("; grant it, as the chart's roles do")
        assert [each["status"] for each in status["conditions"] if each["type"] == "Stalled"] == ["True"]

        await rights.take()
        await jobs.lose("before", 0)
        await until(lambda: "cannot" in operator.log.read_text())
        await rights.give_back()
        for name in ("before", "new"):
            await jobs.edit(name, activeDeadline="1h")  # or a minute later by itself
        status = await jobs.until("before", lambda now: now.get("round") == 2)
        assert status["restarts"]["total"] == 1
        await jobs.until("new", lambda now: now.get("round") == 1)
        assert operator.process.poll() is None
