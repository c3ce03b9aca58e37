"""Several snakes on a torus, thousands of tori at once.

A body is a board of timers: a cell says for how many more steps it stays occupied, the head's cell says the length.
Moving is then "count down, write the length under the new head", with no list of segments; a snake that starts is its
head alone and unfolds as it moves.
"""

import torch
from torch import Tensor

from torchyard_trainers.rl.environment import Outcome, State

START_LENGTH = 3
LIMIT = 500
PLANES = 4  # own body, other bodies, other heads, food
DIRECTIONS = 2  # nearest food: ahead or behind, right or left
# Row and column of one step up, right, down, left.
STEPS = ((-1, 0), (0, 1), (1, 0), (0, -1))


class Snake:
    """A agents turn left (0), go straight on (1) or turn right (2), all at once. Food is +1, death is -1.

    A snake dies where a body is, other than a tail that leaves in this step; two heads in one cell both die. Its body
    goes, and it starts again somewhere free, so every agent always plays. A snake sees a square around its head, turned
    so that it looks up, and whether the nearest food is ahead or behind, right or left of it.
    """

    actions = 3
    limit = LIMIT
    measure = "evalLength"

    def __init__(self, grid: int, agents: int, food: int, view: int, device: torch.device) -> None:
        """Lay out a torus of grid x grid cells and the squares of view x view cells that can be seen."""
        self.grid, self.agents, self.food, self.cells = grid, agents, food, grid * grid
        self.planes = (PLANES, view, view)
        self.observed = PLANES * view * view + DIRECTIONS
        self.draws = 2 * agents + food + 1
        self._numbered = torch.arange(self.cells, device=device)
        self._shifts = torch.arange(PLANES, dtype=torch.uint8, device=device)[:, None]
        self._steps = torch.tensor(STEPS, device=device)
        self._neighbour = self._around([(1, 0)])[..., 0]  # [4, cells]: the cell ahead
        middle = view // 2
        square = [(middle - row, column - middle) for row in range(view) for column in range(view)]
        self._window = self._around(square)  # [4, cells, view * view]

    def reset(self, numbers: Tensor) -> State:
        """See `Environment`."""
        copies = len(numbers)
        none = torch.zeros(copies, self.agents, dtype=torch.int64, device=numbers.device)
        state = {
            "body": torch.zeros(copies, self.agents, self.cells, dtype=torch.int16, device=numbers.device),
            "head": none,
            "heading": none,
            "length": none,
            "food": torch.full((copies, self.food), self.cells, dtype=torch.int64, device=numbers.device),
        }
        return self._spawn(state, torch.ones_like(none, dtype=torch.bool), numbers)

    def observe(self, state: State) -> Tensor:
        """See `Environment`: uint8, planes [4, view, view] of 0 and 1, flattened; then two signs, plus 1."""
        own = state["body"] > 0
        head, heading, food = state["head"], state["heading"], state["food"]
        heads = (head[..., None] == self._numbered).any(1)
        meals = (food[..., None] == self._numbered).any(1)
        # One byte a cell with a bit a plane, so that one gather brings all planes.
        others = own.any(1).to(torch.uint8) * 2 + heads.to(torch.uint8) * 4 + meals.to(torch.uint8) * 8
        coded = torch.where(own, torch.ones_like(others)[:, None], others[:, None])
        seen = coded.gather(-1, self._window[heading, head])
        planes = (seen.unsqueeze(-2) >> self._shifts) & 1
        return torch.cat([planes.flatten(-2), self._scent(head, heading, food)], -1)

    def step(self, state: State, actions: Tensor, numbers: Tensor) -> Outcome:
        """See `Environment`."""
        heading = (state["heading"] + actions + 3) % 4
        head = self._neighbour[heading, state["head"]]
        finds = head[..., None] == state["food"][:, None]
        grows = finds.any(-1)
        body = state["body"]
        body = body - ((body > 0) & ~grows[..., None]).to(torch.int16)
        hits = (body > 0).any(1).gather(1, head)
        clashes = (head[..., None] == head[:, None]).sum(-1) > 1
        dies = hits | clashes
        eats = grows & ~dies
        length = state["length"] + eats
        here = (head[..., None] == self._numbered) & ~dies[..., None]
        body = torch.where(here, length[..., None].to(torch.int16), torch.where(dies[..., None], 0, body))
        eaten = (finds & eats[..., None]).any(1)
        moved = {
            "body": body,
            "head": head,
            "heading": heading,
            "length": length,
            "food": torch.where(eaten, self.cells, state["food"]),
        }
        reward = eats.float() - dies.float()
        return Outcome(self._spawn(moved, dies, numbers), reward, dies, torch.zeros_like(dies), None)

    def quality(self, episode_return: Tensor, terminated: Tensor) -> Tensor:
        """See `Environment`: the length at the end, which is where it started and what it ate."""
        return START_LENGTH + episode_return + terminated.to(episode_return.dtype)

    def _spawn(self, state: State, dead: Tensor, numbers: Tensor) -> State:
        """Put dead snakes and missing food on free cells, each of them on one of its own.

        The free cells of a torus, in order, are cut into as many equal parts as things are wanted, and each is put at a
        random place in a part of its own. Food waits where cells run out; a snake never does, since its body left one.
        """
        agents, food = self.agents, self.food
        places, headings, turn = numbers[:, : agents + food], numbers[:, agents + food : -1], numbers[:, -1:]
        wanted = torch.cat([dead, state["food"] == self.cells], 1)
        meals = (state["food"][..., None] == self._numbered).any(1)
        counted = (~((state["body"] > 0).any(1) | meals)).cumsum(1)
        free, needed = counted[:, -1:], wanted.sum(1, keepdim=True).clamp(min=1)
        roomy = free >= needed
        part = wanted.cumsum(1) - 1
        part = torch.where(roomy, (part + (turn * needed).long()) % needed, part)
        first = torch.where(roomy, part * free // needed, part)
        width = torch.where(roomy, (part + 1) * free // needed - first, 1)
        place = first + (places * width).long()
        found = torch.searchsorted(counted, place + 1)
        head = torch.where(dead, found[:, :agents], state["head"])
        starts = dead[..., None] & (head[..., None] == self._numbered)
        return {
            "body": torch.where(starts, START_LENGTH, state["body"]),
            "head": head,
            "heading": torch.where(dead, (headings * 4).long(), state["heading"]),
            "length": torch.where(dead, START_LENGTH, state["length"]),
            "food": torch.where(wanted[:, agents:], found[:, agents:], state["food"]),
        }

    def _scent(self, head: Tensor, heading: Tensor, food: Tensor) -> Tensor:
        """Return 1 plus the signs of how far ahead and how far to the right the nearest food is: [N, A, 2] uint8."""
        grid, half = self.grid, self.grid // 2
        rows = (food // grid)[:, None] - (head // grid)[..., None]
        columns = (food % grid)[:, None] - (head % grid)[..., None]
        rows, columns = (rows + half) % grid - half, (columns + half) % grid - half
        distance = torch.where(food[:, None] == self.cells, 2 * grid, rows.abs() + columns.abs())
        nearest = distance.argmin(-1, keepdim=True)
        offset = torch.cat([rows.gather(-1, nearest), columns.gather(-1, nearest)], -1)
        ahead, right = self._steps[heading], self._steps[(heading + 1) % 4]
        signs = torch.stack([(offset * ahead).sum(-1), (offset * right).sum(-1)], -1).sign()
        return (signs + 1).to(torch.uint8)

    def _around(self, offsets: list[tuple[int, int]]) -> Tensor:
        """Return the cell at each offset (ahead, right) from every cell, for every heading: [4, cells, offsets]."""
        ahead, right = torch.tensor(offsets, device=self._numbered.device).unbind(-1)
        tables = []
        for heading in range(4):
            forward, sideward = self._steps[heading], self._steps[(heading + 1) % 4]
            row = (self._numbered // self.grid)[:, None] + ahead * forward[0] + right * sideward[0]
            column = (self._numbered % self.grid)[:, None] + ahead * forward[1] + right * sideward[1]
            tables.append(row % self.grid * self.grid + column % self.grid)
        return torch.stack(tables)
