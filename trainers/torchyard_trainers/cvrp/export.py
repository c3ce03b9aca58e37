"""What leaves of a trained policy: the scores of the next node as a program, and a page on which it routes vehicles."""

from pathlib import Path

import torch
from torch import Tensor, nn

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.export.program import Page, Program
from torchyard_trainers.core.randomness import sample_keys, split_keys, stream_key
from torchyard_trainers.cvrp import tours
from torchyard_trainers.cvrp.evaluation import make
from torchyard_trainers.cvrp.instances import Instances
from torchyard_trainers.cvrp.params import OURS, Settings
from torchyard_trainers.cvrp.policy import Policy
from torchyard_trainers.cvrp.problems import open_problem

PROGRAM = "policy"


class NextNode(nn.Module):
    """Scores of where a vehicle goes next, from the problem and its situation; the critic stays behind."""

    def __init__(self, policy: Policy, capacity: int) -> None:
        super().__init__()
        self.encoder = policy.encoder
        self.decoder = policy.decoder
        self.inputs = policy.problem.inputs
        self.capacity = float(capacity) if policy.problem.capacitated else 1.0

    def forward(  # noqa: PLR0917 - exporters need a name for each input, and call by place
        self,
        first: Tensor,
        second: Tensor | None = None,
        third: Tensor | None = None,
        fourth: Tensor | None = None,
        fifth: Tensor | None = None,
        sixth: Tensor | None = None,
        seventh: Tensor | None = None,
    ) -> Tensor:
        """Score all nodes. Exporters need a fixed number of names, and problems have other inputs.

        The inputs are those of the problem (`Problem.inputs`), in their order: `xy` [m, n, 2] float32 in the unit
        square, the depot first; `demand` [m, n] float32 whole numbers, 0 at the depot; `more` [m, n, K] float32 of the
        problem, for vrptw opening, closing and service; `visited` [m, n] bool, false at the depot; `node` [m] int64,
        where the vehicle is; `load` [m] float32, what it still carries; `time` [m] float32, when it leaves.

        Returns:
            [m, n] float32, -inf where it may not go.
        """
        given = (first, second, third, fourth, fifth, sixth, seventh)
        found = {name: each for name, each in zip(self.inputs, given, strict=False) if each is not None}
        xy = found["xy"]
        demand = found.get("demand", torch.zeros_like(xy[..., 0]))
        load = found.get("load", torch.ones_like(xy[:, 0, 0]) * self.capacity)
        clock = found["time"][:, None] if "time" in found else None
        instances = Instances(xy, demand, torch.full((), self.capacity), found.get("more"))
        state = tours.Tours(found["node"][:, None], load[:, None], found["visited"][:, None], clock)
        return self.decoder(self.decoder.remember(self.encoder(instances)), instances, state)[:, 0]


@torch.no_grad()
def program(policy: Policy, settings: Settings, cases: int) -> Program:
    """Return the scores with `cases` situations from as many sampled routes, early and late ones."""
    ids = torch.arange(cases)
    instances = make(settings, "export", ids)
    keys = split_keys(sample_keys(stream_key(settings.seed, "export routes", held_out=True), ids), 1)
    memory = policy.decoder.remember(policy.encoder(instances))
    _, situations = policy.construct(instances, memory, keys, None)
    at = ids % (instances.xy.shape[1] - 1)
    state = tours.join(situations)
    inputs = {}
    for name in policy.problem.inputs:
        found = getattr(instances, name, None) if name in Instances._fields else getattr(state, name)[ids, at]
        assert found is not None, f"the problem has no {name}, which its inputs name"
        inputs[name] = found
    return Program(NextNode(policy, settings.capacity).eval(), inputs, ("scores",))


def page(settings: Settings) -> Page:
    """Return the page: the shared frame, the rules and the network once more in JavaScript.

    Raises:
        ConfigError: the problem is of the user's, whose rules are not in JavaScript.
    """
    if settings.problem not in OURS:
        raise ConfigError(
            f"export.formats: web has no page for problem {settings.problem}; leave it out, or use onnx or pt2"
        )
    own = Path(__file__).with_name("page")
    frame = Path(__file__).parents[1] / "core" / "export" / "page"
    files = {name: frame / name for name in ("index.html", "style.css", "frame.js")}
    files |= {name: own / name for name in ("world.js", "play.js")}
    names = ("problem", "model", "heads", "layers", "customers", "distribution")
    smaller = {
        "weights.bin": "trainer.params.embedding (or layers)",
        "golden.bin": "trainer.params.customers",
    }
    capacity = settings.capacity if open_problem(settings.problem).capacitated else 1
    facts = {**{name: getattr(settings, name) for name in names}, "capacity": capacity}
    return Page(PROGRAM, files, facts, smaller=smaller)
