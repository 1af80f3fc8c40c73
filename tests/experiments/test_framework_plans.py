"""Plans for training frameworks: settings as regions, certified, the cheapest that fits first."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock, call

import pytest
from refusals import refused

from remat import Problem, validate
from remat.cli import main
from remat.experiments.framework_plans import FRAMEWORKS, framework_plan
from remat.experiments.framework_plans.candidates import MEGATRON_MODULES
from remat.experiments.framework_plans.layers import Layers
from remat.graphs import ComputeGraph
from remat.graphs.families import unit_chain
from remat.graphs.zoo.language_models import decoder


@pytest.fixture(scope="module")
def graph() -> ComputeGraph:
    return decoder(layers=3)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_settings_are_certified_and_the_cheapest_that_fits_comes_first(framework: str, graph: ComputeGraph) -> None:
    problem = Problem(graph, "75%")
    plan = framework_plan(problem, framework, time_limit=0.3)
    chosen = plan.chosen
    assert chosen is not None and len(plan.settings) > 3
    for each in plan.settings:
        certificate = validate(graph, each.schedule, problem.rules)
        assert certificate.cost == each.certificate.cost and each.fits == (
            certificate.peak <= (problem.budget_bytes or 0)
        )
        assert each.gap is not None and 0 <= each.gap <= (certificate.cost - graph.base_cost) / certificate.cost
        if each.fits:
            assert certificate.cost >= chosen.certificate.cost
    assert plan.best.certificate is not None and plan.best.certificate.cost <= chosen.certificate.cost
    name, ops = REPLAYS[framework]
    replays = next(each for each in plan.settings if each.name == name)
    assert replays.certificate.recomputations == ops * 3
    assert plan.as_dict()["source"] == plan.source
    policies = [each.code for each in plan.settings if each.name == "policy by ops"]
    assert len(policies) == (framework in {"hf", "torchtitan"})
    assert all(policy_code_is_of_the_framework(framework, code) for code in policies)


#: Setting that saves nothing, and ops of a layer that it computes again: 16, or without the last product and its sum.
REPLAYS = {
    "hf": ("all layers", 14), "megatron": ("full, block, 3", 16), "torchtitan": ("FullAC", 16),
    "maxtext": ("full", 14), "jax": ("nothing saved", 14),
}  # fmt: skip


def policy_code_is_of_the_framework(framework: str, code: str) -> bool:
    """Run the code of torchtitan, which has no option for a policy: it applies the policy to the model.

    Code for transformers runs in ``tests/pytorch/test_hugging_face.py``.
    """
    if framework == "hf":
        return 'activation_checkpointing_enable({"use_reentrant": False, "context_fn": policy})' in code
    policy, model, sample = Mock(), object(), object()
    exec(code, {"remat": Mock(torch=Mock(policy=policy)), "model": model, "sample": sample})
    return policy.mock_calls == [call(model, sample, "75%"), call().checkpoint(model)]


def test_names_of_values_are_matched(graph: ComputeGraph) -> None:
    layers = Layers(Problem(graph, "75%"))
    assert layers.names == ["layers.0", "layers.1", "layers.2"]
    assert layers.values["query_proj"] == [f"layers.{k}.attn.q" for k in range(3)]
    assert set(layers.values) == {
        "query_proj", "key_proj", "value_proj", "context", "out_proj", "mlpwi_0", "mlpwi_1", "mlpwo",
    }  # fmt: skip
    assert "mlp.gate" in layers.suffixes


def test_attention_goes_by_the_kind_of_an_op(graph: ComputeGraph) -> None:
    layers = Layers(Problem(graph, "75%"))
    ops = layers.forward["layers.0"]
    layers.__dict__["paths"] = dict.fromkeys(ops, "layers.0.post_attention_layernorm")
    attention = [op for op in ops if layers.belongs(op, "layers.0", MEGATRON_MODULES["core_attn"])]
    assert attention == layers.values["context"][:1]
    assert all(layers.belongs(op, "layers.0", MEGATRON_MODULES["layernorm"]) for op in ops)


def test_plans_refuse_unknown_frameworks_and_graphs_without_layers(graph: ComputeGraph) -> None:
    with refused("problem.framework", culprit="deepspeed"):
        framework_plan(Problem(graph, "75%"), "deepspeed")
    with refused("problem.no-layers", culprit="unit-chain-4"):
        framework_plan(Problem(unit_chain(4), "75%"), "hf")
    with refused("problem.no-budget"):
        framework_plan(Problem(graph), "hf")


def test_plans_are_written_as_text_to_paste_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph, flags = tmp_path / "llama.json", tmp_path / "flags.txt"
    decoder(layers=2).save(graph)
    assert main(["plan", str(graph), "--for", "megatron", "-b", "90%", "-t", "1", "-o", str(flags)]) == 0
    assert flags.read_text().startswith("--recompute-granularity")
    assert "extra time" in capsys.readouterr().out
    assert main(["plan", str(graph), "--for", "jax", "-b", "90%", "-t", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["framework"] == "jax" and found["code"].startswith("#")
    assert main(["plan", str(graph), "-b", "1%", "-t", "1"]) == 1
    refusal = capsys.readouterr().out
    assert "no setting of hf keeps" in refusal and "no schedule keeps the budget" in refusal


FACTORY = """
import jax
from jax import numpy as jnp
from jax.ad_checkpoint import checkpoint_name


@jax.checkpoint
def block(x, w):
    return x + checkpoint_name(jnp.tanh(checkpoint_name(x @ w, "hidden")), "activation") * 2


def loss(layers, x):
    for w in layers:
        x = block(x, w)
    return jnp.mean(jnp.cos(x))


def step():
    return loss, ([jnp.eye(32) / 2] * 4, jnp.ones((256, 32)))
"""


def test_names_of_a_loss_of_jax(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A factory may return a loss of JAX; the budget is read before it is captured."""
    pytest.importorskip("jax")
    monkeypatch.chdir(tmp_path)
    Path("names_of_jax.py").write_text(FACTORY)
    assert main(["plan", "names_of_jax.py:step", "--for", "jax", "-b", "100%", "-t", "1", "-o", "policy.py"]) == 0
    policy = "policy = jax.checkpoint_policies.save_only_these_names('hidden')"
    assert policy in capsys.readouterr().out and Path("policy.py").read_text() == f"{policy}\n"
    assert main(["plan", "names_of_jax.py:step", "--for", "jax", "-b", "1%", "-t", "1"]) == 1
    assert "the least peak is" in capsys.readouterr().out
    assert main(["plan", "missing.py:step", "-b", "half"]) == 2
    assert "budget 'half' is not" in capsys.readouterr().err
