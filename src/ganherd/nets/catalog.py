"""The nets that a recipe can name, with their settings. Importing this module does not import PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from ganherd.nets.net_spec import NetSpec, Setting
from ganherd.util.errors import UserError
from ganherd.util.registry import DISCRIMINATORS as DISCRIMINATORS
from ganherd.util.registry import GENERATORS as GENERATORS
from ganherd.util.registry import Registry, Settings
from ganherd.util.text import did_you_mean, nearest

if TYPE_CHECKING:
    from pydantic import BaseModel

Role = Literal["generator", "discriminator"]


_HIDDEN = Setting("ints", [256, 256], "widths of the hidden layers", minimum=1)
_HIDDEN_ACTIVATION = Setting(
    "str", "leaky", "leaky (slope 0.2, as in the code) or tanh (as in the table)", ("leaky", "tanh")
)
_WCGAN_EPS = Setting("float", 0.8, "eps of batch norm: 0.8 as printed, or the usual 1e-5", minimum=1e-12)
_DCGAN_WIDTH = Setting("int", 64, "channels of the layer nearest to the image", minimum=1)
_DCGAN5_WIDTH = Setting("int", 128, "channels of the layer nearest to the image", minimum=1)
_DCGAN5_DEPTH = Setting("int", 0, "number of times the image is halved; 0: down to 7x7 pixels or less", minimum=0)
_DCGAN5_FIRST = Setting("int", 0, "channels of the first maps; 0: twice those of the next layer", minimum=0)
_TOY_WIDTH = Setting("int", 128, "width of the hidden layers", minimum=1)
_TOY_INIT = Setting(
    "str",
    "torch",
    "initial weights: torch (defaults of its layers) or normal (0.02, as in PacGAN)",
    ("torch", "normal"),
)
_DROPOUT = Setting(
    "float",
    0.0,
    "probability that an activation is dropped, or one for each member",
    minimum=0,
    below=1,
    optional=True,
    per_member=True,
)
_SMALL_WIDTH = Setting("int", 128, "width of the two hidden layers", minimum=1)
_DCGAN_SIZES = (28, 32, 64)
_LABEL_G = Setting("bool", False, "append the label to the noise, one number for each class")
_LABEL_D = Setting("bool", False, "append the label to the image, one channel for each class")
_RESIDUAL: dict[str, Setting] = {
    "width": Setting(
        "int", 64, "channels at the size of the image, doubled by each block up to `growth` times", minimum=1
    ),
    "attention": Setting("bool", False, "self-attention at half the image's size, at most 32 px"),
    "growth": Setting(
        "int", 8, "largest multiple of width; 1: the same width everywhere, as in SNGAN", minimum=1, optional=True
    ),
}
_RESIDUAL_D: dict[str, Setting] = {
    **_RESIDUAL,
    "spectral": Setting(
        "bool", True, "divide every weight by its largest singular value; turn off with R1 or a penalty"
    ),
    "body": Setting(
        "str", "residual", "residual blocks, or plain convolutions for half the cost", ("residual", "plain")
    ),
    "smallest": Setting(
        "int", 4, "maps are halved until no side is longer than this; SNGAN: 8", minimum=2, optional=True
    ),
    "flat_blocks": Setting(
        "int", 0, "further blocks that keep the size of the last maps; SNGAN: 2", minimum=0, optional=True
    ),
}

_LABEL_HEAD = Setting("bool", False, "a logit for each class, of which that of the label counts")
_R3GAN: dict[str, Setting] = {
    "width": Setting("int", 256, "channels of all maps; R3GAN: 768", minimum=1),
    "blocks": Setting("int", 2, "residual blocks at each size of the maps", minimum=1),
    "group": Setting("int", 16, "channels of a group of the 3x3 convolutions", minimum=1),
    "expansion": Setting("int", 2, "multiple of width inside of a block", minimum=1),
}
_STYLEGAN: dict[str, Setting] = {
    "width": Setting("int", 128, "channels at the size of the image; StyleGAN2 on CIFAR-10: 512", minimum=1),
    "growth": Setting("int", 1, "largest multiple of width, doubled by each block; 1: constant", minimum=1),
}

_GENERATORS: dict[str, NetSpec] = {
    "small": NetSpec(
        "ganherd.nets.mlp:SmallGenerator",
        "a small MLP for tiny images: two hidden layers, LeakyReLU",
        {"width": _SMALL_WIDTH, "batch_norm": Setting("bool", False, "batch norm after each hidden layer")},
    ),
    "mlp": NetSpec(
        "ganherd.nets.mlp:MlpGenerator",
        "the MLP of the cellular paper: 256-256, tanh output",
        {"hidden": _HIDDEN, "activation": _HIDDEN_ACTIVATION},
    ),
    "wcgan": NetSpec(
        "ganherd.nets.wcgan:WcganGenerator",
        "the upsampling generator of W-CGAN's Table 1, sized by the image",
        {
            "width": Setting("int", 128, "channels of the first maps; the table's 128", minimum=1),
            "eps": _WCGAN_EPS,
            "label": _LABEL_G,
        },
        images_only=True,
    ),
    "dcgan": NetSpec(
        "ganherd.nets.dcgan:DcganGenerator",
        "DCGAN at 28, 32 or 64 px: 4x4 transposed convolutions, batch norm",
        {"width": _DCGAN_WIDTH, "label": _LABEL_G},
        images_only=True,
        sizes=_DCGAN_SIZES,
    ),
    "dcgan5": NetSpec(
        "ganherd.nets.dcgan:Dcgan5Generator",
        "DCGAN as in its paper and GAP's code: 5x5 transposed convolutions, batch norm; any size",
        {"width": _DCGAN5_WIDTH, "depth": _DCGAN5_DEPTH, "first": _DCGAN5_FIRST},
        images_only=True,
    ),
    "gran": NetSpec(
        "ganherd.nets.gran:GranGenerator",
        "GRAN's recurrent canvas, painted in steps by 5x5 transposed convolutions; any size",
        {
            "steps": Setting("int", 3, "number of times the canvas is painted (T)", minimum=1),
            "width": _DCGAN5_WIDTH,
            "first": _DCGAN5_FIRST,
        },
        images_only=True,
    ),
    "toy": NetSpec(
        "ganherd.nets.toy:ToyGenerator",
        "GAP's MLP for 2-D toys: four hidden layers, batch norm, ReLU",
        {
            "width": _TOY_WIDTH,
            "batch_norm": Setting("bool", True, "batch norm after each hidden layer"),
            "init": _TOY_INIT,
        },
    ),
    "residual": NetSpec(
        "ganherd.nets.residual:ResidualGenerator",
        "residual blocks with batch norm, as in SNGAN: about 3 M parameters at 32 px, any size",
        _RESIDUAL,
        images_only=True,
    ),
    "conditional": NetSpec(
        "ganherd.nets.conditional:ConditionalGenerator",
        "the residual generator with the label as an input: batch norm by class",
        _RESIDUAL,
        images_only=True,
        labelled=True,
    ),
    "r3gan": NetSpec(
        "ganherd.nets.r3gan:R3ganGenerator",
        "R3GAN's blocks without normalisation, one width, grouped 3x3 convolutions; any size",
        {**_R3GAN, "label": _LABEL_G},
        images_only=True,
    ),
    "stylegan": NetSpec(
        "ganherd.nets.stylegan:StyleganGenerator",
        "a small StyleGAN2 without noise maps: mapping net and modulated convolutions; any size",
        {**_STYLEGAN, "mapping": Setting("int", 2, "layers of the mapping net", minimum=1), "label": _LABEL_G},
        images_only=True,
    ),
}

_DISCRIMINATORS: dict[str, NetSpec] = {
    "small": NetSpec(
        "ganherd.nets.mlp:SmallDiscriminator",
        "a small MLP for tiny images, without normalisation: suitable for a gradient penalty",
        {"width": _SMALL_WIDTH, "dropout": _DROPOUT},
    ),
    "mlp": NetSpec(
        "ganherd.nets.mlp:MlpDiscriminator",
        "the MLP of the cellular paper, mirrored: 256-256",
        {"hidden": _HIDDEN, "activation": _HIDDEN_ACTIVATION, "dropout": _DROPOUT},
    ),
    "wcgan": NetSpec(
        "ganherd.nets.wcgan:WcganDiscriminator",
        "the 16-32-64-128 discriminator of W-CGAN's Table 2, sized by the image",
        {
            "width": Setting("int", 16, "channels of the first layer, doubled by each; the table's 16", minimum=1),
            "eps": _WCGAN_EPS,
            "dropout": replace(_DROPOUT, default=0.25, optional=False),
            "batch_norm": Setting("bool", True, "batch norm after layers 2 to 4; turn off for a gradient penalty"),
            "label": _LABEL_D,
        },
        images_only=True,
    ),
    "dcgan": NetSpec(
        "ganherd.nets.dcgan:DcganDiscriminator",
        "DCGAN at 28, 32 or 64 px: 4x4 convolutions of stride 2, LeakyReLU",
        {
            "width": _DCGAN_WIDTH,
            "batch_norm": Setting(
                "bool", True, "batch norm after all layers but the first; turn off for a gradient penalty"
            ),
            "label": _LABEL_D,
        },
        images_only=True,
        sizes=_DCGAN_SIZES,
    ),
    "dcgan5": NetSpec(
        "ganherd.nets.dcgan:Dcgan5Discriminator",
        "the discriminator of GAP's DCGANs and GRANs: 5x5 convolutions of stride 2, LeakyReLU; any size",
        {
            "width": _DCGAN5_WIDTH,
            "depth": _DCGAN5_DEPTH,
            "batch_norm": Setting("bool", True, "batch norm after each convolution; turn off for a gradient penalty"),
            "first_norm": Setting(
                "bool", True, "batch norm after the first layer too, as in GAP's code; the DCGAN paper has none"
            ),
        },
        images_only=True,
    ),
    "toy": NetSpec(
        "ganherd.nets.toy:ToyDiscriminator",
        "GAP's MLP for 2-D toys: four hidden layers, batch norm, LeakyReLU; PacGAN's by settings",
        {
            "width": _TOY_WIDTH,
            "layers": Setting("int", 4, "number of hidden layers", minimum=1),
            "activation": Setting(
                "str", "leaky", "leaky (slope 0.2), relu, or maxout of five pieces", ("leaky", "relu", "maxout")
            ),
            "batch_norm": Setting("bool", True, "batch norm after each hidden layer; turn off for a gradient penalty"),
            "init": _TOY_INIT,
        },
    ),
    "residual": NetSpec(
        "ganherd.nets.residual:ResidualDiscriminator",
        "residual blocks without batch norm, as in SNGAN: about 3 M parameters at 32 px, any size",
        _RESIDUAL_D,
        images_only=True,
    ),
    "conditional": NetSpec(
        "ganherd.nets.conditional:ConditionalDiscriminator",
        "the residual discriminator with the label as an input, by projection",
        _RESIDUAL_D,
        images_only=True,
        labelled=True,
    ),
    "acgan": NetSpec(
        "ganherd.nets.conditional:AcganDiscriminator",
        "the residual discriminator that also predicts the class, for loss.class_weight",
        _RESIDUAL_D,
        images_only=True,
        labelled=True,
    ),
    "r3gan": NetSpec(
        "ganherd.nets.r3gan:R3ganDiscriminator",
        "R3GAN's blocks without normalisation, for relativistic-pairing with R1 and R2; any size",
        {**_R3GAN, "label": _LABEL_HEAD},
        images_only=True,
        class_head=True,
    ),
    "stylegan": NetSpec(
        "ganherd.nets.stylegan:StyleganDiscriminator",
        "StyleGAN2's residual discriminator, for non-saturating with R1; any size",
        {**_STYLEGAN, "label": _LABEL_HEAD},
        images_only=True,
        class_head=True,
    ),
}


for _name, _spec in _GENERATORS.items():
    GENERATORS.add(_name, _spec)
# Settings that every discriminator has: they add layers to its net (see `nets.common.sample_groups`).
_SAMPLE_GROUPS: dict[str, Setting] = {
    "minibatch_std": Setting(
        "int",
        0,
        "samples over which a standard deviation is shown to the last layer; 0: none",
        minimum=0,
        optional=True,
    ),
    "packing": Setting(
        "int", 1, "samples that are judged together, joined along channels, as in PacGAN", minimum=1, optional=True
    ),
}
for _name, _spec in _DISCRIMINATORS.items():
    assert isinstance(_spec.settings, dict)
    DISCRIMINATORS.add(_name, replace(_spec, settings={**_spec.settings, **_SAMPLE_GROUPS}))
GENERATORS.seal()
DISCRIMINATORS.seal()


def specs(role: Role) -> Registry[NetSpec]:
    """Return the registry of all generators, or of all discriminators."""
    return GENERATORS if role == "generator" else DISCRIMINATORS


def is_foreign(name: str) -> bool:
    """Return whether the name has the form of a user's own class, `package.module:Class`.

    >>> is_foreign("mlp"), is_foreign("mypackage.nets:MyGenerator")
    (False, True)
    """
    return ":" in name


def is_packaged(name: str) -> bool:
    """Return whether the net of this name comes with ganherd. Other nets are tried out before they are trained.

    >>> is_packaged("mlp"), is_packaged("mypackage.nets:MyGenerator")
    (True, False)
    """
    return GENERATORS.is_own(name) or DISCRIMINATORS.is_own(name)


def is_strange(name: str) -> bool:
    """Return whether building the net of this name would import code that is not ganherd's.

    That is a user's own class, or a net of a plug-in that is not loaded yet.

    >>> is_strange("mlp"), is_strange("mypackage.nets:MyGenerator")
    (False, True)
    """
    return is_foreign(name) or not (GENERATORS.is_loaded(name) or DISCRIMINATORS.is_loaded(name))


class WrongNet(UserError):
    """Raised for a net that is not in the catalog, or a wrong setting of a net that is."""

    def __init__(self, sentence: str, setting: str = "") -> None:
        super().__init__(sentence)
        self.setting = setting  # "" if the net is unknown


def check(role: Role, name: str, settings: Mapping[str, Any], key: str = "") -> Settings:
    """Check the settings of the named net, and return all of them, defaults included.

    Settings that are marked as optional are left out if they are not given. The settings of a user's own class are
    returned unchanged, because checking them would run its code.

    Args:
        role: `generator` or `discriminator`.
        name: The name of the net.
        settings: The settings that the recipe gives.
        key: The key of the net in a recipe, for messages; default: its role.

    Raises:
        WrongNet: The name or a setting is wrong.

    >>> check("generator", "small", {"width": 64})
    {'width': 64, 'batch_norm': False}
    """
    known = specs(role)
    if not is_foreign(name) and not known.accepts(name):
        raise WrongNet(known.unknown(name, among="and your own, package.module:Class"))
    if is_foreign(name) or not known.may_load(name):
        return dict(settings)
    catalogued, key = known[name].settings, key or role
    if not isinstance(catalogued, Mapping):  # a pydantic model of a user's net, which the recipe checks
        return dict(settings)
    strange = next((own for own in settings if own not in catalogued), None)
    if strange is not None:
        hint = did_you_mean(f"{key}.{strange}", [f"{key}.{near}" for near in nearest(strange, catalogued)])
        takes = f" ({role} {name} takes {', '.join(catalogued) or 'none'})"
        raise WrongNet(f"unknown key '{key}.{strange}'{takes}{hint}", strange)
    full = {}
    for own, setting in catalogued.items():
        if setting.optional and own not in settings:
            continue
        value = settings.get(own, setting.default)
        try:
            full[own] = setting.check(value)
        except ValueError as error:
            raise WrongNet(f"{key}.{own} {error}, not {value!r}", own) from None
    if full.get("packing", 1) > 1 and (known[name].labelled or full.get("label")):
        raise WrongNet(
            f"{key}.packing joins samples of different labels, and {name} takes labels: leave packing out", "packing"
        )
    return full


def settings_model(role: Role, name: str) -> type[BaseModel] | None:
    """Return the pydantic model of the settings of a net that a user registered.

    Return None if it has no such model, or may not be imported.
    """
    known = specs(role)
    if is_foreign(name) or not known.may_load(name):
        return None
    settings = known[name].settings
    return None if isinstance(settings, Mapping) else settings


def check_shape(role: Role, name: str, shape: tuple[int, ...]) -> None:
    """Raise a UserError if the named net cannot generate or read data of this shape."""
    if is_foreign(name):
        return
    spec = specs(role)[name]
    if spec.images_only and len(shape) != 3:
        raise UserError(
            f"{role} {name} is for images, and this data has rows of {shape[0]} numbers: use small, toy or mlp"
        )
    if spec.sizes and (shape[1] != shape[2] or shape[1] not in spec.sizes):
        sizes = ", ".join(f"{s}x{s}" for s in spec.sizes)
        raise UserError(
            f"{role} {name} is made for images of {sizes} pixels, not {shape[1]}x{shape[2]}: "
            "resize the images (data.size for a folder) or use wcgan, which takes any size"
        )
