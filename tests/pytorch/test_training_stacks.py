"""Rematerialized modules in training stacks: losses and state equal those of the plain module there."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from eager import assert_equal, record  # noqa: E402
from refusals import refused  # noqa: E402
from torch import nn  # noqa: E402

from remat.torch import Rematerialized, policy, rematerialize  # noqa: E402
from remat.torch.rematerialized.module import convert, restore  # noqa: E402
from remat.torch.rematerialized.planner import Planner  # noqa: E402
from remat.torch.rematerialized.planning import Settings  # noqa: E402

#: Tolerance in half precision, where eager dropout on a CPU rounds its mask.
HALF = 0.02
#: A quick search.
QUICK = {"method": "greedy", "costs": "flops"}


class Net(nn.Module):
    """Two layers repeated, with dropout, a statistic and an attribute that forward reads."""

    def __init__(self, width: int = 16, count: int = 4) -> None:
        super().__init__()
        self.scale = 2.0
        self.layers = nn.Sequential(
            *(each for _ in range(count) for each in (nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.1)))
        )
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Any, target: Any = None) -> Any:
        y = self.norm(self.layers(x) * self.scale)
        return y if target is None else (y - target).square().mean()


def made(count: int = 4) -> Net:
    torch.manual_seed(0)
    return Net(count=count)


def batches(*sixteens: int) -> list[tuple[Any, Any]]:
    """Return batches of 16 times as many rows, so that activations need more than gradients."""
    generator = torch.Generator().manual_seed(5)
    return [tuple(torch.randn(16 * n, 16, generator=generator) for _ in range(2)) for n in sixteens]


def trained(call: Any, data: list[tuple[Any, Any]], step: Callable[[Any, Any], Any] | None = None) -> list[Any]:
    """Train with SGD; return losses and the state at the end."""
    optimizer = torch.optim.SGD([each for each in call.parameters() if each.requires_grad], lr=0.1, momentum=0.9)
    torch.manual_seed(7)
    losses = []
    for x, target in data:
        optimizer.zero_grad()
        loss = call(x, target) if step is None else step(x, target)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(each.clone() for each in call.state_dict().values())]


def assert_same(ours: list[Any], eager: list[Any], tolerance: float = 0.0) -> None:
    """Assert equal tensors: bit by bit, or for half precision up to a share of their values."""
    for one, other in zip(ours, eager, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def test_module_is_an_instance_of_the_original_class() -> None:
    """Class, name, signature, attributes set on either side, and methods of the class."""
    import inspect

    plain = made(2)
    model = rematerialize(plain, batches(8)[0], "70%", **QUICK)
    assert isinstance(model, Net) and isinstance(model, Rematerialized) and type(model).__name__ == "Net"
    assert inspect.signature(model.forward) == inspect.signature(plain.forward)
    assert list(inspect.signature(type(model).forward).parameters) == ["self", "x", "target"]
    model.scale = 3.0
    model.note = "kept"
    assert plain.scale == 3.0 and plain.note == model.note == "kept"
    del plain.note
    assert not hasattr(model, "note") and type(type(model)(16)) is Net
    model.head = nn.Linear(2, 2)
    assert plain.head is model.head and "head.weight" in model.state_dict()


def test_first_call_is_the_sample_and_changes_are_captured_again() -> None:
    """Losses are those of eager before and after a layer is replaced; a changed precision is captured, too."""
    eager, plain = made(2), made(2)
    model = rematerialize(plain, None, "70%", **QUICK)
    assert model.reports == [] and "not captured yet" in repr(model)
    with refused("execution.no-step"):
        model.report  # noqa: B018 (a property)
    data = batches(8, 8)
    assert_same(trained(model, data), trained(eager, data))
    first = model.report
    assert first.recomputations and first.predicted_peak <= 0.7 * first.reference_peak
    for each in (model, eager):
        torch.manual_seed(3)
        each.layers[0] = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
        for name, value in each.named_parameters():
            value.requires_grad_(not name.startswith("layers.3"))
    assert_same(trained(model, data), trained(eager, data))
    assert len(model.reports) == 1 and model.report.ops > first.ops and model.report.budget == first.budget
    model.double(), eager.double()
    data = [(x.double(), target.double()) for x, target in batches(2, 2)]
    assert_same(trained(model, data), trained(eager, data))


def test_conversion_in_place_is_undone() -> None:
    eager, plain = made(2), made(2)
    data, hooked = batches(8, 6, 8), []
    plain.register_forward_hook(lambda *given: hooked.append(len(given)))
    model = convert(plain, Planner(Settings("70%", **QUICK), "capture"))
    assert model is plain and isinstance(plain, Rematerialized) and isinstance(plain, Net)
    assert_same(trained(plain, data), trained(eager, data))
    assert len(model.reports) == 2
    before = type(plain)
    assert restore(plain) is plain and type(plain) is Net and before is not Net
    assert_same(trained(plain, data), trained(eager, data))
    assert vars(plain).keys() == vars(eager).keys()


def test_copies_share_steps_and_not_state() -> None:
    model = rematerialize(made(2), batches(8)[0], "70%", **QUICK)
    other = copy.deepcopy(model)
    assert type(other) is type(model) and other.report is model.report
    other.scale = 5.0
    assert model.scale == 2.0 and other.original.scale == 5.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["compile", "autocast", "scaler", "backward", "average", "export"])
def test_parts_of_torch(kind: str) -> None:
    """``torch.compile`` around it, autocast, GradScaler, optimizers in backward, weight averages, ``torch.export``."""
    data = batches(8, 8, 8)
    found = []
    for rematerialized in (True, False):
        model: Any = made()
        if rematerialized:
            model = rematerialize(model, None, "70%", other_shapes="capture", **QUICK)
        call, step = model, None
        if kind == "compile":
            call = torch.compile(model, backend="eager")
        elif kind == "autocast":

            def step(x: Any, target: Any, model: Any = model) -> Any:
                with torch.autocast("cpu"):
                    return (model(x) - target).square().mean()

        elif kind == "scaler":
            scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

            def step(x: Any, target: Any, model: Any = model, scaler: Any = scaler) -> Any:
                return scaler.scale(model(x, target))

        elif kind == "backward":
            optimizers = {each: torch.optim.SGD([each], lr=0.1) for each in model.parameters()}

            def hook(each: Any, optimizers: Any = optimizers) -> None:
                optimizers[each].step()
                optimizers[each].zero_grad()

            for each in model.parameters():
                each.register_post_accumulate_grad_hook(hook)
        result = trained(call, data, step)
        if kind == "average":
            averaged = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
            result += trained(model, data)
            averaged.update_parameters(model)
            averaged.eval()
            result.append(averaged(data[0][0]).detach())
        if kind == "export":
            result.append(torch.export.export(model.eval(), (data[0][0],)).module()(data[0][0]).detach())
        if rematerialized:
            assert model.report.recomputations
        found.append(result)
    assert_same(*found, tolerance=HALF if kind == "autocast" else 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_two_processes(tmp_path: Path, sharded: bool) -> None:
    """DDP, and FSDP2 around each rematerialized block: each process has half of the batch."""
    torch.multiprocessing.spawn(_process, (str(tmp_path / "store"), sharded), nprocs=2)


def _process(rank: int, store: str, sharded: bool) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    data = [tuple(each[rank::2].contiguous() for each in pair) for pair in batches(16, 16)]
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    found = []
    for rematerialized in (True, False):
        model: Any = made()
        model.norm = nn.LayerNorm(16)
        if sharded:
            ends = (nn.Tanh(), nn.Sigmoid(), nn.Tanh())
            model.layers = nn.Sequential(*(nn.Sequential(*model.layers[k : k + 3], *ends) for k in (0, 3, 6, 9)))
        blocks = list(model.layers) if sharded else [model]
        if rematerialized:
            x = data[0][0].clone().requires_grad_()
            sample = (x,) if sharded else data[0]
            blocks = [rematerialize(each, sample, "80%" if sharded else "70%", **QUICK) for each in blocks]
            assert all(each.report.recomputations for each in blocks)
        if sharded:
            model.layers = nn.Sequential(*(torch.distributed.fsdp.fully_shard(each, mesh=mesh) for each in blocks))
            call = torch.distributed.fsdp.fully_shard(model, mesh=mesh)
        else:
            call = nn.parallel.DistributedDataParallel(blocks[0])
        result = trained(call, data)
        found.append([each.full_tensor() if hasattr(each, "full_tensor") else each for each in result])
    assert_same(*found)
    torch.distributed.destroy_process_group()


# -- Hugging Face ------------------------------------------------------------------------------------------------------


def gpt2(**options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    config = transformers.GPT2Config(
        vocab_size=40, n_positions=16, n_embd=16, n_layer=3, n_head=2, bos_token_id=1, eos_token_id=2, use_cache=False,
        **options,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def texts(count: int, length: int = 12) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(2)
    rows = torch.randint(4, 40, (count, length), generator=generator)
    return [{"input_ids": row, "labels": row, "unused": 3} for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize(
    "how, bf16",
    [("policy", False), *((how, bf16) for bf16 in (False, True) for how in ("module", "callback", "blocks"))],
)
def test_trainer_of_hugging_face(tmp_path: Path, how: str, bf16: bool) -> None:
    """Columns are removed, evaluation, best model at the end, accumulation, tied weights, a shorter last batch."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from remat.torch.trainers.hugging_face import RematCallback

    found, saved = [], []
    for rematerialized in (True, False):
        model = gpt2()
        folder = tmp_path / str(rematerialized)
        checkpoints: dict[str, Any] = {}
        if rematerialized and how == "policy":
            sample = {"input_ids": (ids := torch.stack([each["input_ids"] for each in texts(4)])), "labels": ids}
            chosen = policy(model, (), "80%", sample_kwargs=sample, costs="flops", compare=False, time_limit=20)
            checkpoints = {
                "activation_checkpointing": True,
                "activation_checkpointing_kwargs": {"use_reentrant": False, "context_fn": chosen},
            }
        args = transformers.TrainingArguments(
            **checkpoints,
            output_dir=str(folder), per_device_train_batch_size=4, per_device_eval_batch_size=4, num_train_epochs=2,
            gradient_accumulation_steps=2, eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True,
            logging_steps=1, report_to=[], use_cpu=True, bf16=bf16, seed=3, disable_tqdm=True,
        )  # fmt: skip
        callbacks: list[Any] = []
        if rematerialized and how == "callback":
            callbacks = [RematCallback("70%", **QUICK)]
        if rematerialized and how == "blocks":
            callbacks = [RematCallback("80%", blocks="GPT2Block", **QUICK)]
        if rematerialized and how == "module":
            model = rematerialize(model, None, "70%", other_shapes="capture", **QUICK)
        trainer = transformers.Trainer(model, args, train_dataset=texts(10), eval_dataset=texts(6), callbacks=callbacks)
        trainer.train()
        if rematerialized:
            assert chosen.report.ops if how == "policy" else (callbacks or [model])[0].reports[0].recomputations
        if how != "module":
            assert type(model) is transformers.GPT2LMHeadModel
            assert all(type(block) is type(gpt2().transformer.h[0]) for block in model.transformer.h)
        trainer.save_model(str(folder / "end"))
        saved.append(transformers.GPT2LMHeadModel.from_pretrained(str(folder / "end")))
        losses = [
            torch.tensor(value) for row in trainer.state.log_history for key, value in row.items() if "loss" in key
        ]
        found.append([*losses, *(each.clone() for each in model.state_dict().values())])
        generated = model.eval().generate(torch.tensor([[5, 6]]), max_new_tokens=4, do_sample=False, use_cache=True)
        found[-1].append(generated)
    assert_same(*found, tolerance=HALF if bf16 else 0.0)
    assert_same(*([*each.state_dict().values()] for each in saved), tolerance=HALF if bf16 else 0.0)


@pytest.mark.slow
def test_models_of_hugging_face_keep_their_interface(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = rematerialize(gpt2(), None, "70%", **QUICK)
    assert isinstance(model, transformers.PreTrainedModel) and model.config.n_layer == 3
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert type(again) is transformers.GPT2LMHeadModel
    assert again.config.architectures == ["GPT2LMHeadModel"]
    assert_equal(record(again), record(gpt2()))


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_adapters_of_peft(after: bool) -> None:
    """Before or after rematerialize; merged weights are those of the plain model."""
    peft = pytest.importorskip("peft")
    row = torch.stack([each["input_ids"] for each in texts(4)])
    found = []
    for rematerialized in (True, False):
        model = gpt2()
        config = peft.LoraConfig(r=2, target_modules=["c_attn"], lora_dropout=0.1, task_type="CAUSAL_LM")
        inner = model
        if rematerialized and after:
            model = inner = rematerialize(model, (), "70%", sample_kwargs={"input_ids": row, "labels": row}, **QUICK)
        torch.manual_seed(4)
        model = peft.get_peft_model(model, config)
        if rematerialized and not after:
            model = inner = rematerialize(model, None, "70%", **QUICK)
        result = trained(model, [(row, row)] * 3, lambda x, labels, call=model: call(input_ids=x, labels=labels).loss)
        if rematerialized:
            assert inner.report.recomputations
        merged = model.merge_and_unload()
        found.append([*result, *(each.clone() for each in merged.state_dict().values())])
    assert_same(*found)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_accelerate(precision: str) -> None:
    accelerate = pytest.importorskip("accelerate")
    data = batches(8, 8)
    found = []
    for rematerialized in (True, False):
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerator = accelerate.Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=2)
        model: Any = made()
        if rematerialized:
            model = rematerialize(model, None, "70%", **QUICK)
        call, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        torch.manual_seed(7)
        losses = []
        for x, target in data * 2:
            with accelerator.accumulate(call):
                loss = call(x, target)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
        plain = accelerator.unwrap_model(call, keep_fp32_wrapper=False)
        losses.append(plain.eval()(data[0][0]).detach())
        found.append([*losses, *(each.clone() for each in plain.state_dict().values())])
        if rematerialized:
            assert model.report.recomputations
    assert_same(*found, tolerance=HALF if precision == "bf16" else 0.0)


# -- Lightning ---------------------------------------------------------------------------------------------------------


def loader(*sixteens: int) -> Any:
    return torch.utils.data.DataLoader(batches(*sixteens), batch_size=None)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["net", ""])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_lightning(tmp_path: Path, name: str, precision: str) -> None:
    """Validation between epochs and before the first; a callback for a submodule or the whole module."""
    lightning = pytest.importorskip("lightning")
    from remat.torch.trainers.lightning import RematCallback

    class Task(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = made()
            self.losses: list[Any] = []

        def forward(self, x: Any) -> Any:
            return self.net(x)

        def loss(self, batch: Any) -> Any:
            x, target = batch
            found = ((self if name == "" else self.net)(x) - target).square().mean()
            self.losses.append(found.detach())
            return found

        def training_step(self, batch: Any, number: int) -> Any:
            return self.loss(batch)

        def validation_step(self, batch: Any, number: int) -> Any:
            return self.loss(batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    found = []
    for rematerialized in (True, False):
        task, callback = Task(), RematCallback("70%", name, **QUICK)
        trainer = lightning.Trainer(
            max_epochs=2, precision=precision, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
            callbacks=[callback] if rematerialized else [],
        )  # fmt: skip
        torch.manual_seed(7)
        trainer.fit(task, loader(8, 8, 6), loader(8, 5))
        if rematerialized:
            assert len(callback.reports) == 2 and callback.reports[0].recomputations
        assert type(task) is Task and type(task.net) is Net
        found.append([*task.losses, *(each.clone() for each in task.state_dict().values())])
    assert_same(*found, tolerance=HALF if precision == "bf16-mixed" else 0.0)


@pytest.mark.slow
def test_lightning_callback_names_what_is_wrong(tmp_path: Path) -> None:
    """A submodule that does not exist, and one that the step does not call."""
    lightning = pytest.importorskip("lightning")
    from remat.errors import CaptureRemark
    from remat.torch.trainers.lightning import RematCallback

    class Task(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.other = made(), nn.Linear(2, 2)

        def training_step(self, batch: Any, number: int) -> Any:
            return self.net(*batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit(name: str) -> None:
        trainer = lightning.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=tmp_path, callbacks=[RematCallback("70%", name, **QUICK)],
        )  # fmt: skip
        trainer.fit(Task(), loader(8))

    with refused("execution.no-submodule", culprit="nett"):
        fit("nett")
    with pytest.warns(CaptureRemark, match="did not call 'other'"):
        fit("other")
