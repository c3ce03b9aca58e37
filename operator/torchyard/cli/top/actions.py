"""Actions on a job in the terminal: each says what it will do, and asks once."""

from collections.abc import Awaitable, Callable
from typing import Any

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.events import Key
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from torchyard.api.formatting import clean
from torchyard.cli.top.source import Source
from torchyard.client.backend import Backend
from torchyard.client.errors import TorchYardError

ACTIONS = (
    Binding("s", "suspend", "Suspend/stop"),
    Binding("r", "resume", "Resume"),
    Binding("d", "delete", "Delete"),
)


class ActionScreen(Screen[None]):
    """A screen with the keys of `ACTIONS`, and a line `#trouble` for what went wrong."""

    def target(self) -> tuple[Source, str] | None:
        """Return the location and name of the job that actions concern; None: there is no job."""
        raise NotImplementedError

    def say(self, sentence: str) -> None:
        """Show a sentence below the rest; an empty one removes it."""
        self.query_one("#trouble", Static).update(Text(clean(sentence)))

    def look(self) -> None:
        """Read what the screen shows again."""
        raise NotImplementedError

    def action_suspend(self) -> None:
        """Ask, then save and stop a run, or suspend a job of a cluster."""
        self._ask(
            lambda here: "Stop" if here else "Suspend",
            lambda here: f"It saves a checkpoint and {'stops' if here else 'its pods are deleted'}.",
            lambda backend, name: backend.suspend(name),
        )

    def action_resume(self) -> None:
        """Ask, then continue a suspended job of a cluster."""
        target = self.target()
        if target is not None and target[0].location.kind == "local":
            self.say(f"`torchyard resume {target[1]}` continues it in a terminal, which then controls it")
            return
        self._ask(
            lambda _here: "Resume",
            lambda _here: "It continues from its newest checkpoint.",
            lambda backend, name: backend.resume(name),
        )

    def action_delete(self) -> None:
        """Ask, then delete a job."""
        self._ask(
            lambda _here: "Delete",
            lambda here: (
                "Its logs and checkpoints are deleted, too." if here else "Its pods are deleted; claims remain."
            ),
            lambda backend, name: backend.delete(name),
        )

    def _ask(
        self,
        verb: Callable[[bool], str],
        does: Callable[[bool], str],
        work: Callable[[Backend, str], Awaitable[Any]],
    ) -> None:
        target = self.target()
        if target is None:
            return
        source, name = target
        here = source.location.kind == "local"

        async def carry_out() -> None:
            if await self.app.push_screen_wait(Question(f"{verb(here)} {name}? {does(here)}")):
                try:
                    await source.ask(lambda backend: work(backend, name))
                except TorchYardError as error:
                    self.say(error.sentence + (f"; {error.fix}" if error.fix else ""))
                else:
                    self.look()

        self.run_worker(carry_out(), group="act")


class Question(ModalScreen[bool]):
    """A question that y answers with yes, and any other key with no.

    Args:
        sentence: the question, and what will happen.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__()
        self._sentence = sentence

    def compose(self) -> ComposeResult:
        """Yield the widgets."""
        with Vertical():
            yield Static(Text(clean(self._sentence)))
            yield Static(Text("\ny: yes   any other key: no", style="dim"))

    def on_key(self, event: Key) -> None:
        """Answer."""
        event.stop()
        self.dismiss(event.key == "y")
