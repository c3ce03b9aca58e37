"""The sampler's process: Optuna takes half a second to import and, with many trials, seconds to suggest.

One process answers one question at a time, as lines of JSON on its stdin and stdout. It ends when its stdin ends, hence
with its controller however that ends, and after a minute without questions.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from torchyard.api import values
from torchyard.api.spec import TrainingJobSpec
from torchyard.interpreter import own_environment, own_python
from torchyard.sweeps.outcomes import Outcome
from torchyard.sweeps.sampling import MissingLibraryError, Past, importances, suggest
from torchyard.sweeps.space import grid_point
from torchyard.sweeps.spec import JobTemplate, TrainingSweepSpec

SUGGEST_SECONDS = 300.0
IDLE_SECONDS = 60.0
MAX_ANSWER = 1024 * 1024


class SamplerError(Exception):
    """The sampler failed: it did not answer in time, ended, or raised."""


class _Question(Struct, frozen=True, kw_only=True):
    spec: TrainingSweepSpec
    number: int
    basis: int
    history: Sequence[Outcome]
    past: Sequence[Past]
    importances: bool = False
    """Asks for those of the parameters, instead of a suggestion."""


class _Answer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    parameters: dict[str, Any] | None = None
    missing: str = ""
    error: str = ""


class Sampler:
    """Suggests parameters in a separate process, which is started on demand.

    Args:
        limit: seconds for one suggestion; then the process is killed.
        idle: seconds without a question after which the process ends.
        niceness: of the process; above 0 where the controller serves others beside this sweep. A trial waits for the
            answer, so that a lower priority than that of the trials keeps a slot empty.
    """

    def __init__(self, *, limit: float = SUGGEST_SECONDS, idle: float = IDLE_SECONDS, niceness: int = 0) -> None:
        self._limit, self._idle, self._niceness = limit, idle, niceness
        self._process: asyncio.subprocess.Process | None = None
        self._killed: set[asyncio.Task[int]] = set()  # until their processes have ended
        self._turn = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None

    async def suggest(
        self, spec: TrainingSweepSpec, number: int, basis: int, history: Sequence[Outcome], past: Sequence[Past]
    ) -> dict[str, Any]:
        """Return the parameters of a trial, see `sampling.suggest`.

        Raises:
            MissingLibraryError: Optuna, or what the algorithm needs beside it, is not installed.
            SamplerError: there is no suggestion; the next call starts a new process.
        """
        if spec.algorithm.name == "grid":
            return grid_point(spec, number)
        return await self._asked(_question(spec, number=number, basis=basis, history=history, past=past))

    async def importances(
        self, spec: TrainingSweepSpec, ended: Sequence[Outcome], past: Sequence[Past]
    ) -> dict[str, float]:
        """Return the importance of each parameter, see `sampling.importances`. Raises what `suggest` does."""
        return await self._asked(_question(spec, number=0, basis=0, history=ended, past=past, importances=True))

    async def _asked(self, question: _Question) -> dict[str, Any]:
        async with self._turn:
            if self._timer is not None:
                self._timer.cancel()
            process = await self._started()
            try:
                async with asyncio.timeout(self._limit):
                    answer = await _ask(process, msgspec.json.encode(question, enc_hook=values.encode))
            except TimeoutError:
                self.kill()
                raise SamplerError(f"the sampler has not answered within {self._limit:.0f} s") from None
            except BaseException:
                self.kill()  # an answer to an abandoned question may still come
                raise
            self._timer = asyncio.get_running_loop().call_later(self._idle, self.kill)
        if answer.missing:
            raise MissingLibraryError(answer.missing)
        if answer.parameters is None:
            raise SamplerError(answer.error or "the sampler gave no answer")
        return answer.parameters

    async def close(self) -> None:
        """End the process, if there is one, and wait for its end and that of those before it."""
        self.kill()
        await asyncio.gather(*self._killed)

    def kill(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if self._timer is not None:
            self._timer.cancel()
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            end = asyncio.get_running_loop().create_task(process.wait())
            self._killed.add(end)
            end.add_done_callback(self._killed.discard)

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *own_python("-m", "torchyard.sweeps.sampler", str(self._niceness)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the controller
                limit=MAX_ANSWER,
                env=own_environment(os.environ, OMP_NUM_THREADS="1"),
            )
        return self._process


def _question(spec: TrainingSweepSpec, **asked: Any) -> _Question:
    # What the search does not depend on stays here.
    spec = replace(spec, deadline=None, ttl_after_finished=None, job_template=JobTemplate(spec=TrainingJobSpec()))
    return _Question(spec=spec, **asked)


async def _ask(process: asyncio.subprocess.Process, question: bytes) -> _Answer:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(question + b"\n")
        await process.stdin.drain()
        line = await process.stdout.readline()
    except (OSError, ValueError) as error:
        raise SamplerError(f"the sampler ended: {error}") from error
    if not line:
        code = await process.wait()
        raise SamplerError(f"the sampler ended with code {code}")
    try:
        return msgspec.json.decode(line, type=_Answer)
    except msgspec.DecodeError as error:
        raise SamplerError(f"the sampler's answer cannot be read: {error}") from error


def main() -> None:
    """Answer questions until stdin ends; the argument is the niceness to do so with."""
    os.nice(int(sys.argv[1]))
    decoder = msgspec.json.Decoder(_Question, dec_hook=values.decode)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library that prints must not be taken for an answer
    for line in sys.stdin.buffer:
        answers.write(msgspec.json.encode(_answer(decoder, line)) + b"\n")
        answers.flush()


def _answer(decoder: "msgspec.json.Decoder[_Question]", line: bytes) -> _Answer:
    try:
        asked = decoder.decode(line)
        if asked.importances:
            return _Answer(parameters=importances(asked.spec, asked.history, asked.past))
        return _Answer(parameters=suggest(asked.spec, asked.number, asked.basis, asked.history, asked.past))
    except ImportError:
        return _Answer(missing="Optuna is not installed: `pip install 'torchyard[sweep]'`")
    except MissingLibraryError as error:
        return _Answer(missing=str(error))
    except Exception as error:  # noqa: BLE001 -- whatever a sampler raises is reported by the controller
        return _Answer(error=f"{type(error).__name__}: {error}"[:1000])


if __name__ == "__main__":
    main()
