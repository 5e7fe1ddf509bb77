"""The section `data` of a recipe: the training data, and the rows of it that each member sees."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from ganherd.recipe.base import Section, refuse
from ganherd.recipe.plugins.plugin_settings import full_settings
from ganherd.recipe.plugins.recipe_plugins import is_named_source
from ganherd.util.registry import DATA_SOURCES, Settings
from ganherd.util.text import did_you_mean


class DataConfig(Section):
    """The training data, and the rows of it that each member sees."""

    # a name of `ganherd data list`, a path (.npz, .npy, .csv, .txt, .parquet, .tar, idx files, a folder), a pattern of files
    # such as images-{000..009}.tar, or hf:owner/name; paths are relative to the current folder; options follow
    # after #, such as #image=photo,label=breed,split=train
    source: str = "digits"
    # by-class: one member per class; all: every member sees all rows; diet: every member sees its own random fraction
    partition: Literal["by-class", "all", "diet"] = "by-class"
    diet: float = Field(1.0, gt=0, le=1)  # fraction of the data that each member sees (partition: diet)
    holdout: float = Field(0.2, ge=0, lt=1)  # fraction of each class that is held out, if the source has no test set
    # the numbers by which held-out rows of these classes are chosen; herd.grow_from sets it, so that the same rows are held out
    held_out_as: dict[str, Annotated[int, Field(ge=0)]] = {}
    epoch: Literal["largest", "smallest", "mean"] = "largest"  # member whose data one epoch goes through once
    size: int | None = Field(None, ge=2)  # width and height, in pixels, to which images are cropped and resized
    bad_images: Literal["refuse", "skip"] = "refuse"  # what to do with files that are not images
    points: int | None = Field(None, ge=1)  # number of training points that are drawn (toys) or used (r15)
    label: str | None = None  # column of a table (.csv, .tsv, .txt) with the labels; null: label, class, target or y
    settings: Settings = Field({}, validate_default=True)  # settings of a data source of your own

    @field_validator("settings")
    @classmethod
    def _fit_the_source(cls, settings: Settings, info: ValidationInfo) -> Settings:
        source = info.data.get("source", "")
        if is_named_source(source):
            DATA_SOURCES.accepts(source)
            return full_settings(DATA_SOURCES, source, settings, "data.settings")
        if settings:
            hint = did_you_mean(source, DATA_SOURCES.names(), " ({})")
            raise refuse(
                "data.source data.settings",
                f"data.settings is for a data source by name, and there is none named {source!r}{hint}: install the package that "
                "it comes from, or leave data.settings out",
            )
        return settings

    @model_validator(mode="after")
    def _diet_is_a_partition(self) -> DataConfig:
        if self.diet < 1 and self.partition != "diet":
            raise refuse(
                "data.diet data.partition",
                f"data.diet {self.diet:g} has no effect with data.partition {self.partition}: "
                "set data.partition to diet, or data.diet to 1",
            )
        return self
