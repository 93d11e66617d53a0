"""Frameworks on top of PyTorch with compiled models, at small size: they give what they give in eager.

Those that are not installed are skipped.
"""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import weft


@pytest.fixture(autouse=True)
def quiet():
    """Frameworks warn of their own affairs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", weft.WeftWarning)
        yield


class Regression(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 16), torch.nn.GELU(), torch.nn.Linear(16, 1)
        )

    def forward(self, x, labels=None):
        result = self.layers(x)
        if labels is None:
            return {"logits": result}
        return {"loss": (result.squeeze(-1) - labels).square().mean(), "logits": result}


class Rows(torch.utils.data.Dataset):
    def __init__(self, count: int = 12) -> None:
        generator = torch.Generator().manual_seed(3)
        self.x = torch.randn(count, 4, generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index):
        return {"x": self.x[index], "labels": self.x[index].sum()}


def pair() -> tuple[Regression, Regression]:
    torch.manual_seed(0)
    model = Regression()
    return model, copy.deepcopy(model)


def assert_equal_weights(first, second, **tolerances) -> None:
    expected = dict(first.named_parameters())
    found = {name.replace("_orig_mod.", ""): p for name, p in second.named_parameters()}
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, **tolerances)


# -- transformers --


@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
def test_trainer(precision, tmp_path) -> None:
    """Trainer with a model compiled before it, wrapped and in place."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    models = [*pair(), *pair()[1:]]
    losses = []
    for number, model in enumerate(models):
        if number == 1:
            model = weft.compile(model)
        elif number == 2:
            weft.compile_module(model)
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / str(number)), per_device_train_batch_size=4, max_steps=4,
            bf16=precision == "bf16", fp16=precision == "fp16", use_cpu=True,
            report_to=[], save_strategy="no", logging_steps=1, seed=1,
            label_names=["labels"], remove_unused_columns=False, disable_tqdm=True,
        )  # fmt: skip
        trainer = transformers.Trainer(model, arguments, train_dataset=Rows())
        trainer.train()
        losses.append([row["loss"] for row in trainer.state.log_history if "loss" in row])
        models[number] = model
    for found, trained in zip(losses[1:], models[1:], strict=True):
        assert found == pytest.approx(losses[0], rel=1e-4 if precision == "float32" else 2e-2)
        assert_equal_weights(
            models[0], trained, rtol=1e-2, atol=1e-5 if precision == "float32" else 2e-3
        )


def language_model():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=64, max_position_embeddings=64, bos_token_id=1,
        eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def test_scaled_gradients_of_half_precision() -> None:
    plain, model = pair()
    batch = torch.utils.data.default_collate([Rows()[n] for n in range(8)])
    for module, run in ((plain, plain), (model, weft.compile(model))):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")
        for _ in range(3):
            with torch.autocast("cpu", torch.float16):
                loss = run(**batch)["loss"]
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert_equal_weights(plain, model, rtol=1e-2, atol=2e-3)


SETTINGS = {
    "greedy": {},
    "beams": {"num_beams": 2},
    "static cache": {"cache_implementation": "static"},
    "sampled": {"do_sample": True, "top_k": 5},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("in_place", [False, True], ids=["wrapped", "in place"])
def test_generate(settings, in_place) -> None:
    model = language_model()
    ids = torch.randint(3, 64, (2, 5))
    settings = {"max_new_tokens": 6, "do_sample": False, **settings}
    torch.manual_seed(4)
    wanted = model.generate(ids, **settings)
    compiled = weft.compile_module(model) if in_place else weft.compile(model)
    torch.manual_seed(4)
    found = compiled.generate(ids, **settings)
    assert torch.equal(found, wanted)


def test_pipeline_of_features() -> None:
    """A pipeline calls what it is given as its model; the tokenizer is a table of words."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: number for number, word in enumerate("[PAD] [UNK] a b c d".split())}
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="[PAD]", unk_token="[UNK]"
    )
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        vocab_size=8,
    )  # fmt: skip
    model = transformers.BertModel(config).eval()
    texts = ["a b c", "d a", "b b b b a"]
    results = []
    for function in (model, weft.compile_module(model)):
        pipe = transformers.pipeline("feature-extraction", model=function, tokenizer=tokenizer)
        results.append(pipe(texts))
    for wanted, found in zip(*results, strict=True):
        torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), rtol=1e-4, atol=1e-5)


# -- accelerate, peft, Lightning, torchmetrics --


@pytest.mark.parametrize("in_place", [False, True], ids=["wrapped", "in place"])
def test_accelerate_prepares_and_unwraps(in_place) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(True)  # what a Trainer has left
    plain, model = pair()
    compiled = weft.compile_module(model) if in_place else weft.compile(model)
    accelerator = accelerate.Accelerator(cpu=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(Rows(), batch_size=4)
    prepared, optimizer, loader = accelerator.prepare(compiled, optimizer, loader)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    for batch in loader:
        for run, step, backward in (
            (prepared, optimizer, accelerator.backward),
            (plain, reference, torch.Tensor.backward),
        ):
            backward(run(**batch)["loss"])
            step.step()
            step.zero_grad()
    unwrapped = accelerator.unwrap_model(prepared)
    assert accelerator.unwrap_model(prepared, keep_torch_compile=False) is model
    assert unwrapped is compiled and getattr(unwrapped, "_orig_mod", unwrapped) is model
    assert_equal_weights(plain, model, rtol=1e-4, atol=1e-5)


def test_peft_adapters_train_inside_a_compiled_model() -> None:
    peft = pytest.importorskip("peft")
    results = []
    for compiles in (False, True):
        torch.manual_seed(0)
        model = peft.get_peft_model(
            Regression(), peft.LoraConfig(r=2, target_modules=["layers.0", "layers.2"])
        )
        run = weft.compile(model) if compiles else model
        batch = torch.utils.data.default_collate([Rows()[n] for n in range(8)])
        for _ in range(2):
            run(**batch)["loss"].backward()
        gradients = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
        assert gradients and all("lora" in name for name in gradients)
        with torch.no_grad(), model.disable_adapter():
            plain = run(batch["x"])["logits"]
        results.append((gradients, plain))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("compiled", ["step", "in place", "whole"])
def test_lightning_trains_compiled_modules(compiled, precision, tmp_path) -> None:
    lightning = pytest.importorskip("pytorch_lightning")

    class Lit(lightning.LightningModule):
        def __init__(self, model) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch, number):
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    plain, model = pair()
    modules = [Lit(plain), Lit(model)]
    if compiled == "in place":
        weft.compile_module(modules[1].model)
    elif compiled == "step":
        modules[1].training_step = weft.compile(modules[1].training_step)
    else:
        modules[1] = weft.compile(modules[1])
    for module in modules:
        trainer = lightning.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
            precision=precision,
        )  # fmt: skip
        trainer.fit(module, torch.utils.data.DataLoader(Rows(), batch_size=4))
    tolerances = (
        {"rtol": 1e-4, "atol": 1e-5} if precision == "32-true" else {"rtol": 1e-2, "atol": 2e-3}
    )
    assert_equal_weights(plain, model, **tolerances)


def test_torchmetrics_accept_compiled_results_and_may_be_compiled() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    results = []
    for compiles in (False, True):
        metric = torchmetrics.MeanSquaredError()
        update = weft.compile(metric.update) if compiles else metric.update
        torch.manual_seed(0)
        for _ in range(3):
            update(torch.randn(8), torch.randn(8))
        results.append(metric.compute())
    torch.testing.assert_close(results[1], results[0])


# -- torch_geometric, diffusers, torchao --


@pytest.mark.parametrize("layer", ["GCNConv", "GATConv", "SAGEConv"])
def test_torch_geometric_layers(layer) -> None:
    geometric = pytest.importorskip("torch_geometric.nn")
    torch.manual_seed(0)
    module = getattr(geometric, layer)(4, 8)
    x, edges = torch.randn(6, 4), torch.tensor([[0, 1, 2, 3, 4, 5, 0], [1, 0, 3, 2, 5, 4, 3]])
    other = copy.deepcopy(module)
    expected, found = module(x, edges), weft.compile(other)(x, edges)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    expected.square().sum().backward()
    found.square().sum().backward()
    for p, q in zip(module.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-3, atol=1e-4)


def test_a_unet_of_diffusers() -> None:
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    unet = diffusers.UNet2DModel(
        sample_size=8, in_channels=2, out_channels=2, layers_per_block=1, block_out_channels=(8, 16),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), norm_num_groups=4,
        up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=4,
    ).eval()  # fmt: skip
    x = torch.randn(1, 2, 8, 8)
    compiled = weft.compile(unet)
    with torch.no_grad():
        for step in (3, 9):
            torch.testing.assert_close(
                compiled(x, step).sample, unet(x, step).sample, rtol=1e-3, atol=1e-4
            )


@pytest.mark.parametrize(
    "kind",
    ["Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig", "Float8WeightOnlyConfig"],
)
def test_weights_quantized_by_torchao(kind) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))
    quantization.quantize_(model.eval(), getattr(quantization, kind)())
    x = torch.randn(4, 32)
    with torch.no_grad():
        torch.testing.assert_close(weft.compile(model)(x), model(x), rtol=1e-3, atol=1e-3)


def test_a_pipeline_of_diffusers() -> None:
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    unet = diffusers.UNet2DModel(
        sample_size=8, layers_per_block=1, block_out_channels=(8, 16), norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), attention_head_dim=4,
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ).eval()  # fmt: skip
    images = []
    for model in (unet, weft.compile(unet)):
        scheduler = diffusers.DDPMScheduler(num_train_timesteps=20)
        pipeline = diffusers.DDPMPipeline(unet=model, scheduler=scheduler)
        pipeline.set_progress_bar_config(disable=True)
        generator = torch.Generator().manual_seed(0)
        made = pipeline(generator=generator, num_inference_steps=3, output_type="np")
        images.append(torch.as_tensor(made.images))
    torch.testing.assert_close(images[1], images[0], rtol=1e-3, atol=1e-3)
