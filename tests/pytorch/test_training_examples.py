"""Examples of training stacks: losses within a budget are those without one."""

from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("torch")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, frameworks, budget",
    [
        ("trainer_gpt2", ["transformers", "accelerate"], "70%"),
        ("lora_gpt2", ["transformers", "peft"], "60%"),
        ("lightning_unet", ["lightning"], "70%"),
        ("fsdp2_llama", ["transformers"], "70%"),
    ],
)
def test_example_trains_as_without_a_budget(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], name: str, frameworks: list[str], budget: str
) -> None:
    for each in frameworks:
        pytest.importorskip(each)
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    example = import_module(name)
    limit = "60" if name == "fsdp2_llama" else "5"  # seconds: options of blocks, and a choice
    within, plain = (
        example.train(example.parse(["--time-limit", limit, "--budget", each])) for each in (budget, "100%")
    )
    assert len(within) == 3 and within == (plain if name == "fsdp2_llama" else pytest.approx(plain, rel=1e-4))
    assert "peak" in capfd.readouterr().out
