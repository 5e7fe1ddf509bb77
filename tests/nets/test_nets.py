"""Every net of the catalog: sizes, shapes and ranges, and all that a herd needs of a plain module."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from ganherd.nets import build_discriminator, build_generator, catalog
from ganherd.recipe.schema import NetConfig
from ganherd.util.errors import UserError

NAMES = sorted(name for name, spec in catalog.GENERATORS.items() if not spec.labelled)  # those: test_residual.py
SIDE = {"dcgan": 28}
AROUND = {"label", "minibatch_std", "packing"}  # settings that are built around a net
NARROW: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": [12, 10]},
    "dcgan": {"width": 4},
    "dcgan5": {"width": 4},
    "gran": {"width": 4, "steps": 2},
    "toy": {"width": 8},
    "small": {"width": 8},
    "residual": {"width": 2},
    "r3gan": {"width": 4, "blocks": 1, "group": 4},
    "stylegan": {"width": 4},
}


def net(name: str, **extra: Any) -> NetConfig:
    return NetConfig(name=name, settings={**NARROW.get(name, {}), **extra})


def critic(name: str, **extra: Any) -> NetConfig:
    """The discriminator that goes with a generator: its own, or that of DCGAN for GRAN."""
    return net({"gran": "dcgan5"}.get(name, name), **extra)


def shape_of(name: str) -> tuple[int, int, int]:
    side = SIDE.get(name, 9)
    return (1, side, side)


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "latent", "g", "d"),
    [
        ("mlp", (1, 28, 28), 64, 283_920, 267_009),
        ("wcgan", (3, 32, 32), 100, 1_051_139, 98_401),
        ("wcgan", (3, 64, 64), 100, None, 99_937),
        ("dcgan", (3, 64, 64), 100, 3_576_704, 2_765_568),
    ],
)
def test_published_parameter_counts(name: str, shape: tuple[int, ...], latent: int, g: int | None, d: int) -> None:
    if g is not None:
        assert count(build_generator(NetConfig(name=name), shape, latent)) == g
    assert count(build_discriminator(NetConfig(name=name), shape)) == d


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    channels=st.sampled_from([1, 3]),
    height=st.integers(5, 40),
    width=st.integers(5, 40),
    latent=st.integers(1, 20),
    batch=st.integers(2, 5),
)
def test_any_image_size_comes_out_as_asked(
    name: str, channels: int, height: int, width: int, latent: int, batch: int
) -> None:
    if name == "dcgan":
        height = width = (28, 32, 64)[height % 3]
    shape = (channels, height, width)
    g, d = build_generator(net(name), shape, latent), build_discriminator(critic(name), shape)
    x = g(3 * torch.randn(batch, latent))
    assert x.shape == (batch, *shape)
    assert x.min() >= -1 and x.max() <= 1
    assert d.eval()(x).shape == (batch,)


@pytest.mark.parametrize("name", ["mlp", "toy", "small"])
def test_points_are_not_squashed(name: str) -> None:
    g, d = build_generator(net(name), (2,), 4), build_discriminator(net(name), (2,))
    with torch.no_grad():
        for p in g.parameters():
            p.mul_(50)
    x = g(torch.randn(64, 4))
    assert x.shape == (64, 2) and x.abs().max() > 1
    assert d(x).shape == (64,)


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_not_probabilities(name: str) -> None:
    torch.manual_seed(0)
    d = build_discriminator(critic(name), shape_of(name))
    with torch.no_grad():
        for p in d.parameters():
            p.mul_(20)
    y = d(20 * torch.randn(64, *shape_of(name)))  # spectral norm takes the factor of the weights away again
    assert y.min() < 0 or y.max() > 1


@pytest.mark.parametrize("name", NAMES)
def test_gradient_penalty_can_be_differentiated(name: str) -> None:
    off = {"batch_norm": False} if "batch_norm" in catalog.DISCRIMINATORS[critic(name).name].settings else {}
    d = build_discriminator(critic(name, **off), shape_of(name))
    g = build_generator(net(name), shape_of(name), 6)
    for p in [*g.parameters(), *d.parameters()]:  # a layer of 0 would let no gradient through
        nn.init.normal_(p, 0.0, 0.1) if p.dim() > 1 and not p.any() else None
    x = g(torch.randn(4, 6))
    (slope,) = torch.autograd.grad(d(x).sum(), x, create_graph=True)
    (slope.flatten(1).norm(dim=1) - 1).square().mean().backward()
    for module in (g, d):
        grads = [p.grad for p in module.parameters() if p.grad is not None]
        assert grads and all(torch.isfinite(v).all() for v in grads)
    weights = [m.weight for m in d.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
    assert all(w.grad is not None and w.grad.abs().sum() > 0 for w in weights)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("role", ["generator", "discriminator"])
def test_stacked_members_equal_separate_ones(name: str, role: str) -> None:
    """Under vmap(functional_call), in float64: outputs, gradients and batch-norm buffers of each member alike."""
    shape, members, batch = shape_of(name), 3, 4
    torch.manual_seed(1)

    def make() -> nn.Module:
        if role == "generator":
            return build_generator(net(name), shape, 6).double()
        off = {"dropout": 0.0} if name == "wcgan" else {}
        return build_discriminator(critic(name, **off), shape).double()

    modules = [make() for _ in range(members)]
    x = torch.randn(members, batch, *((6,) if role == "generator" else shape), dtype=torch.float64)  # [N, B, …]
    params, buffers = stack_module_state(modules)
    buffers = {k: v.clone() for k, v in buffers.items()}

    def call(p: dict[str, Tensor], b: dict[str, Tensor], v: Tensor) -> Tensor:
        return functional_call(modules[0], (p, b), (v,))

    fused = vmap(call, randomness="different")(params, buffers, x)
    fused.square().sum().backward()
    for i, module in enumerate(modules):
        out = module(x[i])
        assert torch.allclose(fused[i], out, rtol=0, atol=1e-12)
        out.square().sum().backward()
        for key, p in module.named_parameters():
            stacked = params[key].grad
            assert stacked is not None and p.grad is not None
            assert torch.allclose(stacked[i], p.grad, rtol=1e-9, atol=1e-12), key
        for key, b in module.named_buffers():
            assert torch.allclose(buffers[key][i], b, rtol=0, atol=1e-12), key


@pytest.mark.parametrize("name", NAMES)
def test_weights_depend_on_the_random_state_alone(name: str) -> None:
    def weights(seed: int) -> list[Tensor]:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            g = build_generator(net(name), shape_of(name), 6)
            d = build_discriminator(critic(name), shape_of(name))
        return [*g.state_dict().values(), *d.state_dict().values()]

    first, again, other = weights(3), weights(3), weights(4)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("name", ["wcgan", "dcgan", "dcgan5"])
def test_convolutional_nets_start_as_dcgan_does(name: str) -> None:
    torch.manual_seed(0)
    for module in (
        build_generator(NetConfig(name=name), (3, 32, 32), 100),
        build_discriminator(NetConfig(name=name), (3, 32, 32)),
    ):
        for layer in module.modules():
            if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)) and layer.weight.numel() > 5000:
                assert abs(layer.weight.std().item() - 0.02) < 0.001 and abs(layer.weight.mean().item()) < 0.001
            if isinstance(layer, nn.BatchNorm2d):
                assert abs(layer.weight.mean().item() - 1) < 0.02
                assert layer.bias.abs().max() == 0


def test_wcgan_tables_layer_by_layer() -> None:
    def kinds(module: nn.Module) -> list[str]:
        return [type(m).__name__ for m in module.modules() if not list(m.children())]

    g = build_generator(NetConfig(name="wcgan"), (3, 32, 32), 100)
    middle = ["Upsample", "Conv2d", "BatchNorm2d", "LeakyReLU"]
    assert kinds(g) == ["Linear", "LeakyReLU", "Unflatten", "BatchNorm2d", *middle, *middle, "Conv2d", "Tanh"]
    assert [m.eps for m in g.modules() if isinstance(m, nn.BatchNorm2d)] == [1e-5, 0.8, 0.8]
    d = build_discriminator(NetConfig(name="wcgan", settings={"eps": "1e-5"}), (3, 32, 32))
    block = ["Conv2d", "LeakyReLU", "Dropout"]
    assert kinds(d) == [*block, *3 * [*block, "BatchNorm2d"], "Flatten", "Linear"]
    assert [m.eps for m in d.modules() if isinstance(m, nn.BatchNorm2d)] == [1e-5] * 3
    assert [m.in_features for m in d.modules() if isinstance(m, nn.Linear)] == [512]
    d50 = build_discriminator(NetConfig(name="wcgan"), (1, 50, 33))
    assert [m.in_features for m in d50.modules() if isinstance(m, nn.Linear)] == [128 * 4 * 3]


@pytest.mark.parametrize("side", [28, 32, 64])
def test_dcgan_sizes(side: int) -> None:
    g = build_generator(net("dcgan"), (1, side, side), 10)
    d = build_discriminator(net("dcgan", batch_norm=False), (1, side, side))
    assert d(g(torch.randn(2, 10))).shape == (2,)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 28), (1, 48, 48)])
def test_dcgan_names_its_sizes(shape: tuple[int, int, int]) -> None:
    with pytest.raises(UserError, match="28x28, 32x32, 64x64"):
        build_generator(NetConfig(name="dcgan"), shape, 10)
    with pytest.raises(UserError, match="28x28, 32x32, 64x64"):
        build_discriminator(NetConfig(name="dcgan"), shape)


@pytest.mark.parametrize(
    ("name", "given_settings", "says"),
    [
        ("mpl", {}, "did you mean 'mlp"),
        ("small", {"widht": 3}, "did you mean 'generator.width"),
        ("small", {"width": 0}, "whole number of at least 1, not 0"),
        ("small", {"width": True}, "whole number"),
        ("small", {"batch_norm": 1}, "true or false"),
        ("mlp", {"activation": "relu"}, "leaky, tanh"),
        ("mlp", {"hidden": 256}, "list of whole numbers"),
        ("mlp", {"hidden": []}, "list of whole numbers"),
        ("wcgan", {"eps": -1}, "number"),
        ("wcgan", {"eps": "small"}, "number"),
    ],
)
def test_wrong_settings_are_one_sentence(name: str, given_settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says) as error:
        build_generator(NetConfig(name=name, settings=given_settings), (1, 8, 8), 4)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["wcgan", "dcgan", "dcgan5"])
def test_image_nets_refuse_points(name: str) -> None:
    with pytest.raises(UserError, match="is for images"):
        build_discriminator(NetConfig(name=name), (2,))


def test_the_catalog_knows_what_the_nets_take() -> None:
    """Defaults in the catalog are those of the constructors, and no setting is missing on either side."""
    import importlib
    import inspect

    for role in ("generator", "discriminator"):
        for name, spec in catalog.specs(role).items():  # type: ignore[arg-type]
            module, _, cls = spec.target.partition(":")
            built = getattr(importlib.import_module(module), cls)
            parameters = inspect.signature(built).parameters
            if "settings" in parameters:  # handed on to the class that it extends
                parameters = inspect.signature(built.__base__).parameters
            knobs = {k: p.default for k, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
            assert knobs.keys() == spec.settings.keys() - AROUND, (role, name)
            for key, knob in knobs.items():
                default = list(knob) if isinstance(knob, tuple) else knob
                assert default == spec.settings[key].default, (role, name, key)


def test_the_catalog_needs_no_torch() -> None:
    code = (
        "import sys; from ganherd.nets import catalog; catalog.check('generator', 'mlp', {}); "
        "print('torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


USER_NETS = """
from pathlib import Path
Path("imported").touch()
from torch import nn
class G(nn.Module):
    def __init__(self, latent, shape, depth=1):
        super().__init__()
        self.depth, self.lin = depth, nn.Linear(latent, shape[0])
    def forward(self, z):
        return self.lin(z)
class D(nn.Module):
    def __init__(self, classes, *, scale: float):
        super().__init__()
        self.classes, self.scale = classes, scale
class Bare(nn.Module):
    pass
class Breaks(nn.Module):
    def __init__(self):
        raise RuntimeError("no luck")
not_a_net = 3
"""


@pytest.fixture
def user_nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A file of nets in the current folder, under a name that no other test has imported."""
    monkeypatch.chdir(tmp_path)
    name = f"user_nets_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(USER_NETS)
    path = list(sys.path)
    yield name
    assert sys.path == path
    sys.modules.pop(name, None)


def test_a_users_class_gets_what_it_asks_for(user_nets: str) -> None:
    g = build_generator(NetConfig(name=f"{user_nets}:G", settings={"depth": 5}), (2,), 7, trust_code=True)
    assert g.depth == 5 and g(torch.zeros(3, 7)).shape == (3, 2)
    d = build_discriminator(NetConfig(name=f"{user_nets}:D", settings={"scale": 2.0}), (2,), classes=4, trust_code=True)
    assert vars(d)["classes"] == 4 and vars(d)["scale"] == 2.0
    assert isinstance(build_discriminator(NetConfig(name=f"{user_nets}:Bare"), (2,), trust_code=True), nn.Module)


def test_foreign_code_is_not_run_without_trust(user_nets: str) -> None:
    with pytest.raises(UserError, match="--trust-code"):
        build_generator(NetConfig(name=f"{user_nets}:G"), (2,), 7)
    with pytest.raises(UserError, match="--trust-code"):
        build_discriminator(NetConfig(name=f"{user_nets}:D"), (2,))
    assert user_nets not in sys.modules and not Path("imported").exists()


@pytest.mark.parametrize(
    ("cls", "settings_", "says"),
    [
        ("G", {"dept": 1}, "dept"),
        ("D", {}, "scale"),
        ("Missing", {}, "could not be imported"),
        ("not_a_net", {}, "not a class derived from torch.nn.Module"),
        ("Breaks", {}, "no luck"),
    ],
)
def test_a_users_mistake_is_one_sentence(user_nets: str, cls: str, settings_: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        build_generator(NetConfig(name=f"{user_nets}:{cls}", settings=settings_), (2,), 7, trust_code=True)


def test_a_missing_module_is_one_sentence() -> None:
    with pytest.raises(UserError, match="could not be imported"):
        build_generator(NetConfig(name="no_such_package.nets:G"), (2,), 7, trust_code=True)


@pytest.mark.parametrize("module", ["mine.py", "./folder/mine.py"])
def test_a_file_instead_of_a_module_is_named(module: str) -> None:
    with pytest.raises(UserError, match=r"names a file: write mine:G, with mine\.py in the current folder"):
        build_generator(NetConfig(name=f"{module}:G"), (2,), 7, trust_code=True)


def test_the_small_default_is_small() -> None:
    assert count(build_generator(NetConfig(name="small"), (1, 8, 8), 32)) == sum(
        (a + 1) * b for a, b in ((32, 128), (128, 128), (128, 64))
    )
    assert math.isclose(count(build_discriminator(NetConfig(name="small"), (1, 8, 8))), 65 * 128 + 129 * 128 + 129)


class LazyNorms(nn.Module):
    """A user's net with sizes that are known from the first call; in training its norm would move with that call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.LazyLinear(8), nn.LazyBatchNorm1d()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        h = self.norm(self.layer(x.flatten(1)) + 1)
        groups = h.reshape(8, -1, 8)  # compared with each other
        return (h + groups.std(0).repeat(8, 1)).mean(1)


def test_lazy_layers_begin_with_the_statistics_of_a_new_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ganherd.nets.load_own", lambda *_: LazyNorms)
    net = build_discriminator(NetConfig(name="own:LazyNorms"), (1, 4, 4), trust_code=True)
    new = nn.BatchNorm1d(8)
    assert all(torch.equal(value, net.norm.state_dict()[name]) for name, value in new.state_dict().items())
    assert net.calls == 0 and not net.norm._forward_pre_hooks
