"""State of optimizers on the host: updates equal to the bit, bytes on device and host, streams ordered by events."""

import copy
import io
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from refusals import refused  # noqa: E402
from streams import Streams as FakeStreams  # noqa: E402

from remat.errors import ExecutionError, ProblemError  # noqa: E402
from remat.torch import measure_peak, offload_optimizer, rematerialize  # noqa: E402
from remat.torch.transfers import host_memory, links  # noqa: E402

KINDS: dict[str, Any] = {
    "momentum": lambda given: torch.optim.SGD(given, lr=0.1, momentum=0.9),
    "sgd": lambda given: torch.optim.SGD(given, lr=0.1),
    "adam": lambda given: torch.optim.Adam(given, amsgrad=True),
    "foreach": lambda given: torch.optim.AdamW(given, foreach=True),
    "fused": lambda given: torch.optim.AdamW(given, fused=True),
    "rmsprop": lambda given: torch.optim.RMSprop(given, momentum=0.5, centered=True),
    "adafactor": torch.optim.Adafactor,
}


def model() -> Any:
    torch.manual_seed(0)
    parts = [
        torch.nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last),
        torch.nn.Flatten(),
        torch.nn.Linear(288, 64),
    ]
    return torch.nn.Sequential(*parts, *(torch.nn.Linear(64, 64) for _ in range(6)), torch.nn.Linear(64, 1))


def groups(network: Any) -> list[dict[str, Any]]:
    first, *others = network.parameters()
    return [{"params": [first], "lr": 0.01}, {"params": others}]


def gradients(network: Any, step: int) -> None:
    """Set gradients; one layer has none in the second step."""
    torch.manual_seed(step)
    network.zero_grad()
    network(torch.randn(2, 3, 8, 8)).square().mean().backward()
    if step == 1:
        network[4].zero_grad()


@pytest.mark.parametrize("kind", KINDS)
def test_updates_are_equal_to_the_bit(kind: str) -> None:
    """With a scheduler, a checkpoint that is loaded, and a closure; the state is on the host between steps."""
    plain, network = model(), model()
    usual, moved = KINDS[kind](groups(plain)), KINDS[kind](groups(network))
    state = offload_optimizer(moved, "48KiB")
    rates = [torch.optim.lr_scheduler.StepLR(each, 2) for each in (usual, moved)]
    for step in range(5):
        losses = []
        for each, optimizer in ((plain, usual), (network, moved)):
            gradients(each, step)
            losses.append(optimizer.step(lambda each=each: each[-1].weight.square().sum()))
        assert losses[0] == losses[1]
        for rate in rates:
            rate.step()
        assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), network.parameters(), strict=True))
        if step == 2:
            file = io.BytesIO()
            torch.save(moved.state_dict(), file)
            file.seek(0)
            moved.load_state_dict(torch.load(file))
    wanted = [usual.state[parameter] for parameter in plain.parameters()]
    for parameter, values in zip(network.parameters(), wanted, strict=True):
        mine = moved.state[parameter]
        assert mine.keys() == values.keys()
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(mine[name], value) and mine[name].stride() == value.stride()
    sizes = [sum(value.nbytes for value in each.values() if torch.is_tensor(value) and value.dim()) for each in wanted]
    largest = max(sizes)
    assert state.size == sum(sizes)
    assert state.peak <= max(state.most, 2 * largest)
    assert (state.peak > 0) == (kind != "sgd")


def test_step_holds_two_parts_on_the_device() -> None:
    """Measured, a step allocates the two parts that it holds, next to the temporaries of the update."""
    network = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
    adam = torch.optim.Adam(network.parameters(), foreach=False)
    state = offload_optimizer(adam, "72KiB")

    def step() -> None:
        network(torch.randn(2, 64)).square().mean().backward()
        adam.step()

    step()
    step()
    usual = torch.optim.Adam(network.parameters(), foreach=False)
    usual.step()
    temporaries = measure_peak(usual.step).peak
    measured = measure_peak(adam.step).peak
    assert (state.size, state.peak) == (8 * 2 * 4 * 64 * 65, 2 * 2 * 4 * 64 * 65)
    assert state.peak <= state.most < state.size / 3
    assert state.peak <= measured <= state.peak + temporaries


@pytest.mark.parametrize("lost", [None, "write", "read", "wait"])
def test_transfers_do_not_race(lost: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams that do not wait for computation, and computation that does not wait, race."""
    fake = FakeStreams()
    made = links.Streams(torch.device("cpu"), True, fake)
    monkeypatch.setattr(host_memory, "links_of", lambda *_: made)
    network = model()
    adam = torch.optim.Adam(network.parameters())
    offload_optimizer(adam, "72KiB")
    if lost == "wait":
        monkeypatch.setattr(made, "wait", lambda event: None)
    elif lost:
        monkeypatch.setattr(made._out if lost == "write" else made._back, "wait_event", lambda event: None)
    for step in (0, 2, 3):
        gradients(network, step)
        with fake:
            adam.step()
    assert bool(fake.races) == bool(lost) and len(fake.accesses) > 50


def test_existing_state_moves_at_once() -> None:
    network = model()
    adam = torch.optim.Adam(network.parameters())
    gradients(network, 0)
    adam.step()
    before = copy.deepcopy(adam.state_dict())
    state = offload_optimizer(adam, "72KiB")
    assert state.size == 2 * sum(parameter.nbytes for parameter in network.parameters())
    after = adam.state_dict()
    for key, values in before["state"].items():
        assert all(torch.equal(after["state"][key][name], value) for name, value in values.items())


def test_optimizers_without_separate_updates_are_refused() -> None:
    network = model()
    with refused("problem.optimizer-parts", ProblemError, culprit="LBFGS"):
        offload_optimizer(torch.optim.LBFGS(network.parameters()))
    adam = torch.optim.Adam(network.parameters())
    offload_optimizer(adam)
    adam.register_step_post_hook(lambda *_: None)
    gradients(network, 0)
    with refused("execution.step-hooks", ExecutionError, culprit="hook"):
        adam.step()


def test_state_counts_where_it_is() -> None:
    """On the device it is constant memory, on the host the tensors have less room; the optimizer makes no step."""
    network, x = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1)), torch.randn(8, 64)
    given = sum(parameter.nbytes for parameter in network.parameters())
    report = rematerialize(network, x, "100%", constants="included", optimizer="adamw").report
    assert report.state == (2 * given, 0)
    assert report.constant_memory == 3 * given + x.nbytes
    adam = torch.optim.Adam(network.parameters())
    offload_optimizer(adam)
    report = rematerialize(network, x, "100%", offload=2 * given + 1_000, optimizer=adam).report
    assert report.state == (0, 2 * given)
    machine = report.certificate.rules.machine
    assert machine is not None and machine.host == 1_000
    assert report.constant_memory == given + x.nbytes
    assert not adam.state and all(parameter.grad is None for parameter in network.parameters())
    with refused("problem.step-offload", ProblemError, culprit=f"{given:,}"):
        rematerialize(network, x, "100%", offload=given, optimizer=adam)
