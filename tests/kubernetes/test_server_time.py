"""The API server's clock, as answers tell it: what jumps or is wrong on our machine changes nothing."""

from email.utils import formatdate

import pytest
from aiohttp import web
from tests.support.kubernetes.api_server import talking

from torchyard.kubernetes.client.api import SLACK_SECONDS, ServerTime

NOON = 1_795_000_000.0
HOUR = 3600.0


class Machine:
    """A machine whose wall clock is wrong by so many seconds."""

    def __init__(self, wrong: float = 0.0) -> None:
        self.up, self.wrong = 100.0, wrong
        self.time = ServerTime(lambda: self.up, lambda: NOON + self.wrong)

    def answer(self, at: float, *, takes: float = 0.0) -> None:
        """An answer that says it is `at`, to a request that took so long."""
        sent, self.up = self.up, self.up + takes
        self.time.note(formatdate(at, usegmt=True), sent=sent)


@pytest.mark.parametrize("wrong", [-HOUR, -SLACK_SECONDS - 2, HOUR])
def test_a_wrong_clock_is_put_right_by_the_first_answer(wrong):
    machine = Machine(wrong)
    assert machine.time() == NOON + wrong, "no server was asked yet"
    machine.answer(NOON)
    assert machine.time() == pytest.approx(NOON, abs=1.0)


def test_a_clock_that_is_set_while_we_run_is_not_even_seen():
    machine = Machine()
    machine.answer(NOON)
    machine.wrong = HOUR
    machine.up += 10
    assert machine.time() == pytest.approx(NOON + 10, abs=1.0)


def test_whole_seconds_slow_answers_and_servers_that_differ_a_little_move_nothing():
    machine = Machine()
    for at, takes in ((NOON - 0.9, 0.0), (NOON, 15.0), (NOON + 15.0, 0.0), (NOON + 17.0, 0.0), (NOON + 13.0, 0.0)):
        machine.answer(at, takes=takes)
    assert machine.time() == NOON + 15.0


@pytest.mark.parametrize("date", [None, "", "tomorrow", "Mon, 99 Nov 2026 12:00:00 GMT"])
def test_an_answer_without_a_date_does_not_move_the_clock(date):
    machine = Machine(HOUR)
    machine.time.note(date, sent=machine.up)
    assert machine.time() == NOON + HOUR


async def test_every_answer_sets_the_clock_of_all_who_share_the_connection(tmp_path, monkeypatch):
    async def answer(_request):
        return web.json_response({}, headers={"Date": formatdate(NOON, usegmt=True)})

    async with talking(tmp_path, answer, monkeypatch) as api:
        await api.guarded(budget=None, fence=None).request("GET", "/api")
        assert api.time() == pytest.approx(NOON, abs=5.0)
