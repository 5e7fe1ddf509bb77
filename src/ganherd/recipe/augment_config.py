"""The key `train.augment` of a recipe: augmentations by name, with their settings. Importing this does not import PyTorch."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator

from ganherd.recipe.plugins.named_entry import NamedEntry
from ganherd.util.errors import UserError
from ganherd.util.registry import AUGMENTATIONS
from ganherd.util.user_code import must_take


@dataclass(frozen=True)
class AugmentationSpec:
    """An augmentation that a recipe can name."""

    # a function of images [..., B, C, H, W], uniform random numbers [..., B, numbers], and its settings if it has any
    target: Any
    numbers: int  # how many uniform random numbers each image needs
    about: str = ""
    settings: type[BaseModel] | None = None

    @classmethod
    def adopt(
        cls, name: str, target: Any, *, numbers: int = 1, about: str = "", settings: type[BaseModel] | None = None
    ) -> AugmentationSpec:
        """Check an augmentation that a user registers, and return its entry (see `ganherd.register.augmentation`)."""
        if type(numbers) is not int or numbers < 0:
            raise UserError(f"the augmentation {name} needs {numbers!r} numbers for each image: give a whole number.")
        must_take(f"the augmentation {name}", target, "x", "u", *(["settings"] if settings else []))
        return cls(target, numbers, about or (inspect.getdoc(target) or "").partition("\n")[0], settings)


for _name, _numbers, _about in (
    ("colour", 3, "changes of brightness, saturation and contrast"),
    ("translation", 2, "shifts of up to 1/8 of each side"),
    ("cutout", 2, "a window of half of each side is set to zero"),
    ("flip", 1, "half of the images are mirrored"),
):
    AUGMENTATIONS.add(_name, AugmentationSpec(f"ganherd.augment:{_name}", _numbers, _about))
AUGMENTATIONS.seal()


class AugmentConfig(NamedEntry):
    """An augmentation by name with its settings; `package.module:function` names your own."""

    registry, key, what, example = AUGMENTATIONS, "train.augment", "an augmentation", "cutout"


def read_augmentation(value: Any) -> str | AugmentConfig:
    """Check an entry of `train.augment`; return its name, or an `AugmentConfig` if the augmentation has settings."""
    entry = AugmentConfig.model_validate(value)
    return entry if entry.settings else entry.name


Augmentation = Annotated[str | AugmentConfig, BeforeValidator(read_augmentation)]
