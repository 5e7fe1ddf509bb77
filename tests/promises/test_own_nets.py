"""Users' nets are never trained wrongly in silence: each idiom trains as in plain PyTorch or is refused in one sentence."""

from __future__ import annotations

import inspect
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import run_files
import tiny_runs
import torch

import ganherd
from ganherd.herd import rng
from ganherd.herd.engine import autotune
from ganherd.herd.engine.engines import Engine, Plan, make_engine, place_state
from ganherd.herd.engine.explain import explain
from ganherd.herd.rng import Streams
from ganherd.herd.state import buffers_of
from ganherd.mixture.member_sampler import MemberSampler
from ganherd.recipe import recipe_file
from ganherd.training.finish import make_mixture
from ganherd.training.recording.preview import Preview
from ganherd.training.setup.assemble import PreparedHerd, assemble
from ganherd.util.errors import UserError
from promises import refused_nets as refused
from promises import supported_nets as supported
from promises.test_fused_equals_separate import differences

# how the engine `fused` runs each: by its graph, through vmap as a whole, or not at all: then members train one after another
SUPPORTED = {
    supported.FrozenLayer: "graph",
    supported.FrozenWeight: "graph",
    supported.NoGrad: "vmap",
    supported.NoGradMethod: "vmap",
    supported.InferenceMode: "loop",
    supported.EnableGrad: "vmap",
    supported.OwnFunction: "loop",
    supported.FunctionWithVmapRule: "vmap",
    supported.ForwardHook: "vmap",
    supported.ForwardPreHook: "vmap",
    supported.HookOfTheModule: "vmap",
    supported.BackwardHook: "loop",
    supported.BackwardPreHook: "loop",
    supported.GradientHook: "loop",
    supported.TensorHook: "loop",
    supported.BufferAdded: "vmap",
    supported.BufferMultiplied: "vmap",
    supported.BufferAssigned: "vmap",
    supported.BufferData: "loop",
    supported.BufferCopied: "vmap",
    supported.BufferLerped: "vmap",
    supported.AsksForGradients: "vmap",
    supported.LongShortTermMemory: "loop",
    supported.SharedLayer: "graph",
    supported.PaddedEmbedding: "graph",
    supported.PaddedFunction: "graph",
    supported.RenormedEmbedding: "loop",
    supported.ClampedWeight: "loop",
    supported.OwnTrain: "graph",
    supported.EvalInConstructor: "graph",
    supported.ReplacedForward: "vmap",
    supported.ClassicSpectralNorm: "graph",
    supported.OrthogonalSpectralNorm: "graph",
    supported.SpectralNorm: "graph",
    supported.OwnSpectralNorm: "loop",
    supported.ClassicWeightNorm: "vmap",
    supported.WeightNorm: "graph",
    supported.Checkpoint: "loop",
    supported.ReentrantCheckpoint: "loop",
    supported.Attention: "graph",
    supported.Dtypes: "graph",
    supported.NumberDrawn: "loop",
    supported.NoiseOfItsShape: "graph",
    supported.SubclassOfALayer: "graph",
    supported.Lists: "graph",
    supported.Branch: "loop",
    supported.Residual: "graph",
    supported.ChangedView: "vmap",
    supported.InPlaceLayers: "graph",
    supported.FunctionalDropout: "graph",
    supported.DropoutOfAView: "vmap",
    supported.DropoutInPlace: "graph",
    supported.OptionsOfDraws: "loop",
    supported.Defaults: "graph",
    supported.RememberedTensor: "graph",
    supported.NumpyInConstructor: "graph",
    supported.Lazy: "graph",
    supported.Everything: "vmap",
    supported.Recurrence: "loop",
    supported.HeldInAList: "loop",
    supported.HookWithAParameter: "loop",
    supported.HookMethod: "vmap",
    supported.Pruned: "vmap",
    supported.OwnCall: "vmap",
    supported.PlainCheckpoint: "graph",
    supported.CausalMask: "graph",
    supported.Prototypes: "graph",
    supported.GradientOfAFunction: "loop",
    supported.DroppedChannels: "graph",
    supported.UndrawnDraws: "loop",
    supported.KeptActivations: "vmap",
    supported.CachedByBatch: "vmap",
    supported.DirectionalDerivative: "vmap",
    supported.ReadInAnotherShape: "vmap",
    supported.ReadAsItWas: "vmap",
    supported.SizeByPosition: "graph",
}
REFUSED = {
    refused.PythonRandom: r"PythonRandom draws .* random .*refused_nets\.py, line \d+.* use torch\.rand",
    refused.NumpyRandom: r"NumpyRandom draws .* numpy\.random .*refused_nets\.py, line \d+.* use torch\.rand",
    refused.NumpyGenerator: r"NumpyGenerator .* rng.*register_buffer",
    refused.Complex: r"c of Complex \(.*\) is complex.* two tensors",
    refused.Counter: r"Counter .* k .*register_buffer",
    refused.HiddenCounter: r"HiddenCounter .* inner\.k .*register_buffer",
    refused.Recurrent: r"Recurrent .* h .*register_buffer",
    refused.RandomConstant: r"RandomConstant .* mask .*register_buffer",
    refused.UnregisteredLayer: r"UnregisteredLayer remembers layers .*register_buffer",
    refused.GlobalCounter: r"GlobalCounter remembers _calls .*register_buffer",
    refused.NoParameters: r"NoParameters \(.*\) has no parameter that can be trained: give it one",
    refused.SparseEmbedding: r"parameter e\.weight of SparseEmbedding \(.*\) gets a sparse gradient.* leave sparse=True out",
    refused.AllFrozen: r"AllFrozen \(.*\) has no parameter that can be trained: .*do not freeze all",
    refused.InPlaceMistake: r"InPlaceMistake .*in place.* refused_nets\.py, line \d+",
    refused.SharedMemory: r"one and two of SharedMemory \(.*\) share memory.* own",
    refused.BufferOfAnotherShape: r"BufferOfAnotherShape .*buffer m .*shape",
    refused.LayerMadeLate: r"LayerMadeLate .*late.* constructor",
    refused.FrozenInForward: r"FrozenInForward \(.*\) changes f\.weight\.requires_grad in forward.* constructor",
    refused.BufferInAList: r"BufferInAList \(.*\) keeps a buffer under a second name, means of the module itself: use the buffer",
    refused.ParameterMadeAnew: r"ParameterMadeAnew \(.*\) replaces a parameter in forward",
    refused.CheckpointedDropout: r"CheckpointedDropout \(.*\) draws random numbers within torch\.utils\.checkpoint.*outside of it",
    refused.AttentionDropout: r"AttentionDropout draws .*scaled_dot_product_attention.*refused_nets\.py, line \d+.*nn\.Dropout",
    refused.OwnGenerator: r"OwnGenerator draws .* its own generator, with rand \(refused_nets\.py, line \d+.* buffer.*leave gen",
    refused.SeededGenerator: r"SeededGenerator draws .* its own generator, with normal_ \(refused_nets\.py, line \d+\).* buffer",
    refused.SeededInForward: r"SeededInForward seeds PyTorch's generator in forward \(refused_nets\.py, line \d+\).* buffer",
    refused.StateSetBack: r"StateSetBack seeds PyTorch's generator in forward \(refused_nets\.py, line \d+\).* buffer",
    refused.Bernoulli: r"Bernoulli draws .* bernoulli_ \(refused_nets\.py, line \d+\).*use randn",
    refused.AlphaDropout: r"AlphaDropout draws .* alpha_dropout \(refused_nets\.py, line \d+\).*use randn",
    refused.Scripted: r"Scripted .* its layer inner is compiled with torch\.jit: leave torch\.jit out",
    refused.CompiledFunction: r"CompiledFunction calls a function .*refused_nets\.py, line \d+.* leave torch\.compile out",
    refused.Compiled: r"Compiled .* its layer inner is compiled with torch\.compile: leave torch\.compile out",
    refused.AnswersADict: r"AnswersADict .*returns a dict: it must return one tensor",
    refused.FixedBatch: r"FixedBatch runs with 4 samples, but fails with 64 .*x\.shape\[0\]",
    refused.CachedNoise: r"CachedNoise runs with 4 samples, but fails with 64 .*depends on it",
    refused.LabelLast: r"LabelLast .*must take y as its second argument",
}
STEPS = 5


def herd_of(tmp_path: Path, net: type, **sections: Any) -> PreparedHerd:
    """Two members whose generator and discriminator are of that class, in float64, by a penalty that differentiates twice."""
    path, name = tmp_path / "data.npz", f"{net.__module__}:{net.__name__}"
    np.savez(path, x=np.random.default_rng(0).integers(0, 256, (20, 1, 3, 3), dtype=np.uint8))
    recipe: dict[str, Any] = {
        "data": {"source": str(path), "holdout": 0.0, "partition": "all"},
        "herd": {"members": 2},
        "nets": {"generator": name, "discriminator": name, "latent": 3},
        "optim": {"lr_g": [1e-3, 2e-3], "lr_d": 1e-3, "eps": 1e-4},
        "train": {"batch": 4, "precision": "float64", "ema": 0.9},
        "loss": {"name": "non-saturating"},
    }
    for section, values in sections.items():
        recipe[section] = {**recipe.get(section, {}), **values}
    return assemble(recipe_file.load(recipe), trust_code=True)


_HERDS: dict[type, tuple[PreparedHerd, dict[str, torch.Tensor]]] = {}


def shared_herd(tmp_path: Path, net: type) -> PreparedHerd:
    """The same herd for all tests of that net, in its first state: its nets are checked when it is assembled."""
    if net not in _HERDS:
        assembly = herd_of(tmp_path, net)
        _HERDS[net] = assembly, {name: value.clone() for name, value in assembly.herd.state.items()}
    assembly, first = _HERDS[net]
    for name, value in first.items():
        assembly.herd.state[name].copy_(value)
    return assembly


def plan_of(engine: str) -> Plan:
    return Plan(engine, 2, 1, "cpu", "plain" if engine == "loop" else "cpu")


@pytest.mark.parametrize("net", SUPPORTED, ids=lambda net: net.__name__)
@pytest.mark.parametrize("engine", ["loop", "fused"])
def test_a_users_net_trains_as_in_plain_pytorch(tmp_path: Path, net: type, engine: str) -> None:
    assembly = shared_herd(tmp_path, net)
    if engine == "fused" and SUPPORTED[net] == "loop":
        assert autotune.cannot_be_fused(assembly.herd)
        return
    before = {name: value.clone() for name, value in assembly.herd.state.items()}
    found = differences(assembly, STEPS, plan_of(engine))
    assert max(found.values()) < 1e-9, found
    for kind in ("g", "d"):  # … and they learned
        assert not torch.equal(before[f"{kind}.params"], assembly.herd.state[f"{kind}.params"])


@pytest.mark.parametrize("net", SUPPORTED, ids=lambda net: net.__name__)
def test_explain_reports_how_each_layer_runs(tmp_path: Path, net: type) -> None:
    facts = explain(shared_herd(tmp_path, net).herd)
    whole = [
        layer["here"]["why"] for each in facts["nets"] for layer in each["layers"] if layer["layer"] == "all of it"
    ]
    assert all(whole)
    assert SUPPORTED[net] == ("loop" if facts["one_by_one"] else "vmap" if whole else "graph")


def test_explain_prints_no_warnings_of_vmap(tmp_path: Path) -> None:
    herd = herd_of(tmp_path, supported.BufferLerped).herd
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not explain(herd)["one_by_one"]


def test_a_spectral_norm_that_leaves_its_weight_as_it_is_is_accepted(tmp_path: Path) -> None:
    herd = herd_of(tmp_path, supported.OrthogonalSpectralNorm, train={"precision": "float32"}).herd
    assert Engine(herd, plan_of("fused")).advance(0, 1, herd.zero_sums()) == 1


@pytest.mark.parametrize("net", REFUSED, ids=lambda net: net.__name__)
def test_an_unsupported_net_is_refused_in_one_sentence(tmp_path: Path, net: type) -> None:
    with pytest.raises(UserError, match=REFUSED[net]) as refusal:
        herd_of(tmp_path, net)
    told = str(refusal.value)
    assert "\n" not in told
    line = re.search(r"refused_nets\.py, line (\d+)", told)
    lines, first = inspect.getsourcelines(net)
    assert line and first <= int(line[1]) < first + len(lines), told


@pytest.mark.parametrize(
    ("net", "code"),
    [
        (refused.Counter, "self.k += 1"),
        (refused.HiddenCounter, "self.k = getattr"),
        (refused.Recurrent, "before, self.h = self.h"),
        (refused.RandomConstant, "self.mask = torch.rand"),
        (refused.GlobalCounter, "_calls += 1"),
        (refused.Complex, "self.c = nn.Parameter"),
        (refused.LayerMadeLate, "self.late = "),
        (refused.BufferOfAnotherShape, "self.m = "),
    ],
)
def test_a_refusal_names_the_line_that_must_change(tmp_path: Path, net: type, code: str) -> None:
    with pytest.raises(UserError) as refusal:
        herd_of(tmp_path, net)
    line = re.search(r"refused_nets\.py, line (\d+)", str(refusal.value))
    assert line and code in Path(refused.__file__).read_text().splitlines()[int(line[1]) - 1]


def test_a_parameter_that_only_some_steps_use_is_refused(tmp_path: Path) -> None:
    herd = herd_of(tmp_path, supported.UnusedAtTimes).herd
    with pytest.raises(UserError, match=r"UnusedAtTimes uses its parameter inner\.bias in some steps"):
        Engine(herd, plan_of("loop")).advance(0, STEPS, herd.zero_sums())


def test_unused_layers_are_tracked_per_member_not_per_memory_address(tmp_path: Path) -> None:
    herd = herd_of(tmp_path, supported.UnusedBySome).herd
    for kind in ("g", "d"):
        herd.state[f"{kind}.buffers.uses"][1] = 0
    engine = Engine(herd, plan_of("loop"))
    engine.advance(0, 1, herd.zero_sums())
    for value in herd.state.values():
        value.copy_(value.flip(0))
    assert engine.advance(1, 2, herd.zero_sums()) == 2


@pytest.mark.parametrize(
    "net",
    [supported.CachedWeight, supported.MergedWeight, supported.FilledBuffer, supported.MeanOfCalls, supported.Pruned],
)
def test_a_mixture_samples_as_each_member_alone_in_evaluation_mode(tmp_path: Path, net: type) -> None:
    """In plain PyTorch: the weights are loaded, then `eval()` is called, then the net."""
    assembly = herd_of(tmp_path, net)
    Engine(assembly.herd, plan_of("loop")).advance(0, 2, assembly.herd.zero_sums())
    preview = Preview(assembly)
    preview.look(2)
    made = make_mixture(assembly, 2)
    made.save(tmp_path / "mixture")
    for mixture in (made, ganherd.load(tmp_path, trust_code=True)):
        for member in (1, 0, 1):
            tensors = mixture.generator(member)[1]
            z, _ = MemberSampler(mixture, member, -1).noise(0, np.arange(1), np.arange(64))
            wanted = alone(net, tensors)(z) * mixture.scale + mixture.offset
            (images,) = mixture.images(member, -1, np.arange(64))
            assert np.abs(images - wanted.clamp(0, 255).numpy()).max() < 0.51
    seeds = rng.keys(np.zeros(2, np.int64), np.zeros(2, np.int64), np.arange(2))
    noise = Streams(seeds, 0).prior((rng.PREVIEW,), (64, 3), "normal", torch.float64)
    breed, state = assembly.herd.breeds.all[0], assembly.herd.state
    for member, views in enumerate(_each(breed.g.views(state["g.ema"]))):
        tensors = views | {name: value[member] for name, value in buffers_of(state, "g").items()}
        assert torch.allclose(preview.images[member], alone(net, tensors)(noise[member]), atol=1e-9)


def _each(views: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    return [{name: value[member] for name, value in views.items()} for member in range(2)]


def alone(net: type, tensors: dict[str, torch.Tensor]) -> Any:
    """Return a function that calls a fresh net with these parameters and buffers, in evaluation mode."""
    module = net(shape=(1, 3, 3), latent=3).double()
    module.load_state_dict(tensors)
    return torch.no_grad()(module.eval())


@pytest.mark.further(but=["fused"])
@pytest.mark.parametrize("engine", ["loop", "fused"])
def test_resume_and_mixture_keep_frozen_parameters_and_changed_buffers(tmp_path: Path, engine: str) -> None:
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).integers(0, 256, (20, 1, 3, 3), dtype=np.uint8))
    name = "promises.supported_nets:Everything"
    recipe = {
        "data": {"source": str(tmp_path / "data.npz"), "holdout": 0.0, "partition": "all"},
        "herd": {"members": 2},
        "nets": {"generator": name, "discriminator": name, "latent": 3},
        "train": {"batch": 4, "precision": "float64", "ema": 0.9, "budget": "6steps"},
        "loss": {"name": "wasserstein"},
        "engine": {"name": engine, "threads": 1, "device": "cpu"},
        "run": {"scores": False, "sample_every": 0, "checkpoint_every": 3},
    }
    straight, part = tmp_path / "straight", tmp_path / "part"
    tiny_runs.train(straight, recipe)
    tiny_runs.train(part, recipe | {"train": recipe["train"] | {"budget": "3steps"}})
    ganherd.resume(part, ["train.budget=6steps"], quiet=True, trust_code=True, finishers=())
    before, after, resumed = (
        run_files.tensors(run / "checkpoints" / f"step-{step:08}")
        for run, step in ((straight, 3), (straight, 6), (part, 6))
    )
    assert all(torch.equal(value, resumed[key]) for key, value in after.items() if "watch." not in key)
    (file,) = {key.partition("/")[0] for key in after}
    mixture = ganherd.load(straight, trust_code=True)
    (breed,) = mixture.breeds
    assert torch.equal(after[f"{file}/g.params/f.weight"], before[f"{file}/g.params/f.weight"])
    assert torch.equal(breed.params["f.weight"], after[f"{file}/g.params/f.weight"])
    for buffer in ("t", "mask", "fixed.running_mean", "fixed.num_batches_tracked"):
        assert torch.equal(breed.buffers[buffer], after[f"{file}/g.buffers.{buffer}"]), buffer
    assert not torch.equal(breed.buffers["mask"][0], breed.buffers["mask"][1])
    assert (breed.buffers["bn.num_batches_tracked"] == 20).all()  # re-estimated
    samples = mixture.sample(40).x
    assert np.array_equal(mixture.sample(100).x[:40], samples) and np.ptp(samples) > 0
    assert np.array_equal(ganherd.load(part, trust_code=True).sample(40).x, samples)


@pytest.mark.gpu
@pytest.mark.parametrize("net", SUPPORTED, ids=lambda net: net.__name__)
def test_on_a_gpu_every_engine_trains_a_users_net_alike(tmp_path: Path, net: type) -> None:
    states, engines = [], ["loop"]
    if not autotune.cannot_be_fused(herd_of(tmp_path, net).herd):  # depends on PyTorch's version too
        engines += ["fused", "graph"]
    for engine in engines:
        herd = herd_of(tmp_path, net, engine={"device": "cuda"}).herd
        plan = Plan(engine, 2, 1, "cuda")
        place_state(herd, plan)
        before = {name: value.clone() for name, value in herd.state.items()}
        running = make_engine(herd, plan)
        assert running.advance(0, STEPS, herd.zero_sums()) == STEPS
        states.append({name: value.cpu() for name, value in herd.state.items()})
        for kind in ("g", "d"):  # … and they learned
            assert not torch.equal(before[f"{kind}.params"], herd.state[f"{kind}.params"])
    for state, engine in zip(states, engines, strict=True):
        for name, value in states[0].items():
            other = state[name].double()
            gaps = (other - value.double()).abs().where(other != value.double(), 0.0)  # an infinity equals itself
            assert not value.numel() or gaps.max() < 1e-9, (engine, name, float(gaps.max()))
