"""Less usual ways of training stacks: results equal those of the plain module there, bit by bit."""

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from test_training_stacks import QUICK, assert_same, batches, gpt2, loader, made, texts, trained  # noqa: E402
from torch import nn  # noqa: E402

from remat.torch import rematerialize, rematerialize_blocks  # noqa: E402

pytestmark = pytest.mark.slow
BLOCKS: dict[str, Any] = {"other_shapes": "capture", "method": "eviction", "costs": "flops"}


def converted(model: Any, how: str, budget: str = "80%") -> Any:
    """Return the module as it is, rematerialized, or with rematerialized blocks."""
    if how == "module":
        return rematerialize(model, None, budget, other_shapes="capture", **QUICK)
    if how == "blocks":
        rematerialize_blocks(model, "90%", **BLOCKS)
    return model


# -- Trainer of transformers -------------------------------------------------------------------------------------------


def padded(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Collate texts of several lengths, padded to a multiple of four."""
    length = -(-max(len(each["input_ids"]) for each in rows) // 4) * 4

    def column(name: str, value: int) -> Any:
        return torch.stack([nn.functional.pad(each[name], (0, length - len(each[name])), value=value) for each in rows])

    masks = [{"mask": torch.ones_like(each["input_ids"])} for each in rows]
    rows = [{**each, **mask} for each, mask in zip(rows, masks, strict=True)]
    return {"input_ids": column("input_ids", 0), "labels": column("labels", -100), "attention_mask": column("mask", 0)}


def of_lengths(count: int) -> list[dict[str, Any]]:
    """Return texts of 5 to 12 words."""
    return [
        {name: each[name][: 5 + 3 * number % 8] for name in ("input_ids", "labels")}
        for number, each in enumerate(texts(count))
    ]


def frozen(model: Any) -> None:
    model.transformer.wte.requires_grad_(False)
    model.transformer.h[0].requires_grad_(False)


#: Options of the Trainer; "prepare" changes the model before.
TRAINERS: dict[str, dict[str, Any]] = {
    "lengths": {"train_sampling_strategy": "group_by_length"},
    "smoothing": {"label_smoothing_factor": 0.1, "per_device_eval_batch_size": 3, "eval_strategy": "steps"},
    "noise": {"neftune_noise_alpha": 5.0, "gradient_accumulation_steps": 2},
    "frozen": {"prepare": frozen, "auto_find_batch_size": True},
    "compiled": {"torch_compile": True, "torch_compile_backend": "eager"},
    "resumed": {"save_strategy": "epoch"},
}


@pytest.mark.parametrize("how", ["module", "blocks"])
@pytest.mark.parametrize("case", TRAINERS)
def test_trainer(tmp_path: Path, case: str, how: str) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    options = {"save_strategy": "no", **TRAINERS[case]}
    prepare = options.pop("prepare", None)
    found = []
    for kind in (how, "plain"):
        args = transformers.TrainingArguments(
            **options, output_dir=str(tmp_path / kind), per_device_train_batch_size=4, num_train_epochs=2, seed=3,
            logging_steps=1, eval_steps=2, report_to=[], use_cpu=True, disable_tqdm=True,
        )  # fmt: skip

        def trainer(kind: str = kind, args: Any = args) -> Any:
            model = gpt2()
            if prepare:
                prepare(model)
            return transformers.Trainer(
                converted(model, kind), args, train_dataset=of_lengths(10), eval_dataset=of_lengths(5),
                data_collator=padded,
            )  # fmt: skip

        run = trainer()
        run.train()
        if case == "resumed":
            run = trainer()
            run.train(resume_from_checkpoint=str(next((tmp_path / kind).glob("checkpoint-*"))))
        numbers = [value for row in run.state.log_history for key, value in row.items() if "loss" in key]
        logits = run.predict(of_lengths(3)).predictions
        found.append([*map(torch.tensor, numbers), torch.tensor(logits), *run.model.state_dict().values()])
    assert_same(*found)


@pytest.mark.parametrize("how", ["callback", "module"])
def test_sequences_to_sequences_with_generation(tmp_path: Path, how: str) -> None:
    """The callback also switches off the cache of a decoder with a configuration of its own."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from remat.torch.trainers.hugging_face import RematCallback

    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "use_cache": how == "callback"}
    found = []
    for kind in (how, "plain"):
        torch.manual_seed(1)
        config = transformers.T5Config(vocab_size=40, decoder_start_token_id=0, **sizes)
        model = converted(transformers.T5ForConditionalGeneration(config), kind)
        args = transformers.Seq2SeqTrainingArguments(
            output_dir=str(tmp_path), per_device_train_batch_size=4, num_train_epochs=1, predict_with_generate=True,
            generation_max_length=6, eval_strategy="epoch", save_strategy="no", logging_steps=1, report_to=[],
            use_cpu=True, disable_tqdm=True, seed=3,
        )  # fmt: skip
        trainer = transformers.Seq2SeqTrainer(
            model, args, train_dataset=texts(8), eval_dataset=texts(4),
            callbacks=[RematCallback("80%", **QUICK)] if kind == "callback" else [],
        )  # fmt: skip
        trainer.train()
        assert model.decoder.config.use_cache == (how == "callback")
        predicted = trainer.predict(texts(4)).predictions
        found.append([torch.tensor(predicted), *(each.clone() for each in model.state_dict().values())])
    # the plain decoder fills a cache while it trains, which adds up gradients in another order
    assert_same(*found, tolerance=1e-6 if how == "callback" else 0.0)


# -- PEFT --------------------------------------------------------------------------------------------------------------


def adapters(kind: str) -> Any:
    peft = pytest.importorskip("peft")
    causal = {"task_type": "CAUSAL_LM"}
    return {
        "dora": lambda: peft.LoraConfig(
            r=2, target_modules=["c_attn"], use_dora=True, modules_to_save=["lm_head"], **causal
        ),
        "ia3": lambda: peft.IA3Config(
            target_modules=["c_attn", "mlp.c_proj"], feedforward_modules=["mlp.c_proj"], **causal
        ),
        "prompt": lambda: peft.PromptTuningConfig(num_virtual_tokens=3, **causal),
        "lora": lambda: peft.LoraConfig(r=2, target_modules=["c_attn"], lora_dropout=0.1, **causal),
    }[kind]()


def steps(model: Any, count: int = 2) -> list[Any]:
    row = torch.stack([each["input_ids"] for each in texts(4)])
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
    losses = []
    torch.manual_seed(7)
    for _ in range(count):
        optimizer.zero_grad()
        loss = model(input_ids=row, labels=row).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


@pytest.mark.parametrize("how", ["module", "blocks"])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("kind", ["dora", "ia3", "prompt"])
def test_kinds_of_adapters(tmp_path: Path, kind: str, after: bool, how: str) -> None:
    """Saved and loaded again, before or after rematerialize."""
    peft = pytest.importorskip("peft")
    found = []
    for each in (how, "plain"):
        torch.manual_seed(4)
        model = peft.get_peft_model(converted(gpt2(), each) if after else gpt2(), adapters(kind))
        model = model if after else converted(model, each)
        result = [*steps(model), *(value.clone() for value in model.state_dict().values())]
        model.save_pretrained(tmp_path / each)
        more = kind != "prompt"  # PEFT loads prompts for inference alone
        again = peft.PeftModel.from_pretrained(converted(gpt2(), each), tmp_path / each, is_trainable=more)
        found.append([*result, *(steps(again) if more else again.state_dict().values())])
    assert_same(*found)


@pytest.mark.parametrize("how", ["module", "blocks"])
def test_adapters_are_switched_and_disabled(how: str) -> None:
    """Also without gradients to compute, and merged at the end."""
    peft = pytest.importorskip("peft")
    found = []
    for each in (how, "plain"):
        torch.manual_seed(4)
        model = peft.get_peft_model(converted(gpt2(), each), adapters("lora"))
        result = steps(model)
        model.add_adapter("second", adapters("lora"))
        for name in ("second", "default"):
            model.set_adapter(name)
            result += steps(model)
        row = torch.stack([text["input_ids"] for text in texts(4)])
        with model.disable_adapter():
            torch.manual_seed(3)
            result.append(model(input_ids=row, labels=row).loss.detach())
        result += steps(model)
        model.delete_adapter("second")
        merged = model.merge_and_unload()
        merged.requires_grad_(True)
        found.append([*result, *steps(merged), *merged.state_dict().values()])
    assert_same(*found)


# -- Lightning ---------------------------------------------------------------------------------------------------------


def manual(task: Any, batch: Any) -> Any:
    optimizer = task.optimizers()[0]
    optimizer.zero_grad()
    loss = task.loss(batch)
    task.manual_backward(loss)
    task.clip_gradients(optimizer, 0.5, "norm")
    optimizer.step()


def adversarial(task: Any, batch: Any) -> Any:
    (x, target), (first, second) = batch, task.optimizers()
    for optimizer in (first, second):
        task.toggle_optimizer(optimizer)
        made = task.net(x)
        score = task.other(made if optimizer is first else made.detach()).mean()
        loss = -score if optimizer is first else score - task.other(target).mean()
        task.losses.append(loss.detach())
        optimizer.zero_grad()
        task.manual_backward(loss)
        optimizer.step()
        task.untoggle_optimizer(optimizer)


def twice(task: Any, batch: Any) -> Any:
    return task.loss(batch) + task.loss([each * 0.5 for each in batch])


#: The training step, and options of the trainer.
LIGHTNING: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "manual": (manual, {}),
    "adversarial": (adversarial, {}),
    "twice": (twice, {"gradient_clip_val": 0.1, "accumulate_grad_batches": 2}),
    "validation": (lambda task, batch: task.loss(batch), {"val_check_interval": 1, "precision": "64-true"}),
    "average": (lambda task, batch: task.loss(batch), {"average": True}),
}


@pytest.mark.parametrize("how", ["callback", "module"])
@pytest.mark.parametrize("case", LIGHTNING)
def test_lightning(tmp_path: Path, case: str, how: str) -> None:
    """Fit, test, predict, and continue from a checkpoint."""
    lightning = pytest.importorskip("lightning")
    from remat.torch.trainers.lightning import RematCallback

    step, options = LIGHTNING[case]
    options = dict(options)
    average = options.pop("average", False)

    class Task(lightning.LightningModule):
        def __init__(self, kind: str) -> None:
            super().__init__()
            self.automatic_optimization = case not in {"manual", "adversarial"}
            self.net = converted(made(), kind)
            torch.manual_seed(1)
            self.other = nn.Linear(16, 1)
            self.losses: list[Any] = []

        def loss(self, batch: Any) -> Any:
            found = (self.net(batch[0]) - batch[1]).square().mean()
            self.losses.append(found.detach())
            return found

        def training_step(self, batch: Any, number: int) -> Any:
            return step(self, batch)

        def validation_step(self, batch: Any, number: int) -> Any:
            return self.loss(batch)

        test_step = validation_step

        def predict_step(self, batch: Any, number: int) -> Any:
            return self.net(batch[0])

        def configure_optimizers(self) -> Any:
            if self.automatic_optimization:
                return torch.optim.Adam(self.net.parameters(), lr=0.01)
            return [torch.optim.Adam(each.parameters(), lr=0.01) for each in (self.net, self.other)]

    found = []
    for kind in (how, "plain"):

        def trainer(epochs: int, kind: str = kind) -> Any:
            callbacks: list[Any] = [RematCallback("80%", "net", **QUICK)] if kind == "callback" else []
            if average:
                callbacks.append(lightning.pytorch.callbacks.EMAWeightAveraging(decay=0.9))
            return lightning.Trainer(
                **options, max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
                enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path, callbacks=callbacks,
            )  # fmt: skip

        task, again = Task(kind), Task(kind)
        torch.manual_seed(7)
        first = trainer(2)
        first.fit(task, loader(8, 8, 6), loader(8, 5))
        first.test(task, loader(4), verbose=False)
        predicted = first.predict(task, loader(4, 3))
        first.save_checkpoint(tmp_path / kind)
        trainer(3).fit(again, loader(8, 8, 6), loader(8, 5), ckpt_path=tmp_path / kind, weights_only=False)
        states = [*task.state_dict().values(), *again.state_dict().values()]
        found.append([*task.losses, *predicted, *again.losses, *(each.clone() for each in states)])
    assert_same(*found)


# -- accelerate, DistributedDataParallel -------------------------------------------------------------------------------


@pytest.mark.parametrize("prepared_first", [False, True])
@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_accelerate_saves_and_loads_its_state(tmp_path: Path, precision: str, prepared_first: bool) -> None:
    """Uneven batches, clipped gradients; without dropout, whose mask eager mode rounds in half precision."""
    accelerate = pytest.importorskip("accelerate")
    data = torch.utils.data.TensorDataset(*(torch.cat(each) for each in zip(*batches(4, 4, 3), strict=True)))
    found = []
    for kind in ("module", "plain"):
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerator = accelerate.Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=2)
        model: Any = made()
        for each in model.layers[2::3]:
            each.p = 0.0
        model = model if prepared_first else converted(model, kind)
        batched = torch.utils.data.DataLoader(data, batch_size=64)
        call, optimizer, batched = accelerator.prepare(model, torch.optim.Adam(model.parameters()), batched)
        call = converted(call, kind) if prepared_first else call
        losses = []
        for epoch in range(3):
            for x, target in batched:
                with accelerator.accumulate(call):
                    loss = (call(x).float() - target).square().mean()
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        losses.append(accelerator.clip_grad_norm_(call.parameters(), 0.5))
                    optimizer.step()
                    optimizer.zero_grad()
                losses.append(loss.detach())
            if epoch == 0:
                accelerator.save_state(str(tmp_path / kind))
            elif epoch == 1:
                accelerator.load_state(str(tmp_path / kind))
        found.append([*losses, *(each.clone() for each in accelerator.get_state_dict(call).values())])
    assert_same(*found)


class Deep(nn.Module):
    """Blocks, and a part that not every call uses."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(3))
        self.sometimes = nn.Linear(16, 16)

    def forward(self, x: Any, target: Any, use: bool = True) -> Any:
        for layer in self.layers:
            x = x + layer(x)
        return ((self.sometimes(x) if use else x) - target).square().mean()


def test_options_of_distributed_data_parallel(tmp_path: Path) -> None:
    """Unused parameters, a static graph, views of buckets, no_sync, a shorter last batch; two processes."""
    torch.multiprocessing.spawn(_parallel, (str(tmp_path / "store"),), nprocs=2)


def _parallel(rank: int, store: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    data = [tuple(each[rank::2].contiguous() for each in pair) for pair in batches(8, 8, 8, 6)]
    torch.manual_seed(0)
    start = Deep()
    for options in ({"find_unused_parameters": True}, {"static_graph": True}, {"gradient_as_bucket_view": True}, {}):
        found = []
        for kind in ("module", "blocks", "plain"):
            call = nn.parallel.DistributedDataParallel(converted(copy.deepcopy(start), kind), **options)
            optimizer = torch.optim.SGD(call.parameters(), lr=0.1, momentum=0.9)
            losses = []
            for number, each in enumerate(data):
                waits = not options and number % 2 == 0
                with call.no_sync() if waits else contextlib.nullcontext():
                    loss = call(*each, use=number % 2 == 0 or "find_unused_parameters" not in options)
                    loss.backward()
                losses.append(loss.detach())
                if not waits:
                    optimizer.step()
                    optimizer.zero_grad()
            found.append([*losses, *call.state_dict().values()])
        assert_same(found[0], found[2])
        assert_same(found[1], found[2])
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm", "orthogonal"])
def test_parametrizations(kind: str) -> None:
    """Also after their removal."""
    from torch.nn.utils import parametrizations, parametrize

    found = []
    for how in ("module", "plain"):
        model = made()
        for each in model.layers[::3]:
            getattr(parametrizations, kind)(each)
        model = converted(model, how)
        result = trained(model, batches(8, 8))
        parametrize.remove_parametrizations(model.layers[0], "weight")
        found.append(result + trained(model, batches(8, 8)))
    assert_same(*found)


def test_scaler_skips_steps_with_infinite_gradients() -> None:
    found = []
    for how in ("module", "plain"):
        model, scaler = converted(made(), how), torch.amp.GradScaler("cpu", init_scale=2.0**10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(3)
        for number, (x, target) in enumerate(batches(8, 8, 8)):
            optimizer.zero_grad()
            loss = model(x, target) * (float("inf") if number == 1 else 1.0)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 2.0**9
        found.append([each.clone() for each in model.state_dict().values()])
    assert_same(*found)
