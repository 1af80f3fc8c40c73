"""Random programs for ExecuTorch: branches, views, changes in place, variables and control flow."""

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch._higher_order_ops.map import map as mapped
from torch._higher_order_ops.scan import scan

SHAPE = (4, 8)


def wide(x: Tensor, ways: int) -> Tensor:
    """Return values of one shape, summed from wide ones that are all computed first."""
    held = [torch.sin(torch.cat([x, x + k, x * k], 1)) for k in range(ways)]
    return sum((each.reshape(4, 3, 8).sum(1) for each in held), x)


def view(x: Tensor, kind: int) -> Tensor:
    """Return the elements of `x` in another order, by one of several views."""
    return (
        torch.relu(x.view(2, 16)).view(4, 8),
        x.t().reshape(SHAPE),
        x.flip(0) + x[1:2].expand(4, 8),
        torch.cat([x[2:], x[:2]]),
        torch.cat(x.split(2, 1)[::-1], 1),
        x.unsqueeze(1).permute(2, 1, 0).squeeze(1).reshape(SHAPE),
    )[kind]


def changed(x: Tensor, other: Tensor, kind: int) -> Tensor:
    """Return a copy of `x` that is changed in place."""
    x = x.clone()
    if kind == 0:
        return x.mul_(0.5).add_(other)
    if kind == 1:
        x[:, 2:5] = other[:, :3]
    else:
        x.view(2, 16)[0].copy_(other.view(2, 16)[1])
    return x


ELEMENTWISE: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.relu, torch.sigmoid, torch.tanh, lambda x: x * 0.5, lambda x: x - x.mean(), lambda x: torch.cumsum(x, 0),
    lambda x: x.masked_fill(x > 1, 0.5), lambda x: torch.softmax(x, 1),
)  # fmt: skip


class RandomProgram(nn.Module):
    """Program of a seed; `control_flow`: ``cond``, ``map`` or ``scan``, called three times, or none."""

    def __init__(self, seed: int, control_flow: str = "") -> None:
        super().__init__()
        self.seed, self.control_flow = seed, control_flow
        self.register_buffer("total", torch.zeros(SHAPE))
        self.register_buffer("last", torch.ones(SHAPE))

    def forward(self, x: Tensor) -> Tensor:
        draw = random.Random(self.seed)
        held = [x, torch.cos(x)]
        places = draw.sample(range(14), 3)
        for at in range(14):
            a, b = draw.choice(held), draw.choice(held)
            if at in places and self.control_flow:
                new = self._controlled(a, b, draw.randrange(2, 4))
            else:
                new = self._called(a, b, draw)
            if len(held) < 4:
                held.append(new)
            else:
                held[draw.randrange(4)] = new
        return torch.cat(held, 1)

    def _called(self, a: Tensor, b: Tensor, draw: random.Random) -> Tensor:
        kind = draw.randrange(7)
        if kind == 0:
            return wide(a, draw.randrange(2, 5))
        if kind == 1:
            return view(a, draw.randrange(6))
        if kind == 2:
            return changed(a, b, draw.randrange(3))
        if kind == 3:
            before = self.total * 0.5
            self.total.add_(a)
            return before + b
        if kind == 4:
            self.last.copy_(torch.tanh(a))
            return self.last + b
        if kind == 5:
            return a + b
        return draw.choice(ELEMENTWISE)(a)

    def _controlled(self, a: Tensor, b: Tensor, ways: int) -> Tensor:
        if self.control_flow == "cond":
            args = lambda x, y: wide(x, ways) * y, lambda x, y: torch.relu(x + y), (a, b)
            return torch.cond(a.sum() > 0, *args) + a  # read before ExecuTorch's own plan overwrites it
        if self.control_flow == "map":
            return mapped(lambda row, other: torch.sin(torch.cat([row, row * other])).view(2, 8).sum(0), a, b[0] * 2)
        found = scan(lambda held, row: (torch.tanh(held + row), torch.sin(held) * row), b[0] * 2, a)[1]
        return found + a  # ExecuTorch 1.5.1 exports no `view` of the result itself, with its own planner neither


class Chosen(nn.Module):
    """Results of several ``cond``, all read after the last one."""

    def forward(self, x: Tensor) -> Tensor:
        first = torch.cond(x.sum() > 0, lambda x: wide(x, 2), torch.relu, (x,))
        both = torch.cond(first.sum() > 0, lambda x, y: wide(x, 3) * y, lambda x, y: torch.relu(x + y), (first, x))
        last = torch.cond(both[0, 0] > 0, lambda x: torch.sin(wide(x, 2)), lambda x: torch.cos(wide(x, 3)), (both,))
        return torch.cat([first, both, last], 1)


class Cell(nn.Module):
    """Cell of four branches: each layer of all branches runs before the next layer of any, the widest one first."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.ModuleList(nn.Conv2d(32, 48, 1) for _ in range(4))
        self.narrow = nn.ModuleList(nn.Conv2d(48, 12, 1) for _ in range(4))
        self.spatial = nn.ModuleList(nn.Conv2d(12, 12, 3, padding=1) for _ in range(4))
        self.joined = nn.Conv2d(48, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        held = [conv(x) for conv in self.wide]
        held = [conv(each) for conv, each in zip(self.narrow, held, strict=True)]
        held = [torch.relu(each) for each in held]
        held = [conv(each) for conv, each in zip(self.spatial, held, strict=True)]
        return torch.relu(self.joined(torch.relu(torch.cat(held, 1))))


class Irregular(nn.Sequential):
    """Network of three cells, 60 calls, for an input of `SHAPE`."""

    SHAPE = (1, 32, 48, 48)

    def __init__(self) -> None:
        super().__init__(Cell(), Cell(), Cell())
