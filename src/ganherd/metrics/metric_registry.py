"""Metrics by name: the function that measures each, what it needs, and when it is measured by default."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from pydantic import BaseModel

from ganherd.data.readers.synthetic import STACKED
from ganherd.features.material import MetricSkipped, ScoringContext
from ganherd.metrics.plugin_metric import On, measure_by
from ganherd.recipe.mixture_scores import is_own
from ganherd.recipe.plugins.named_entry import MetricEntry, parse_metric, read_metric
from ganherd.recipe.plugins.plugin_settings import full_settings
from ganherd.runs.score_entry import ScoreEntry
from ganherd.util.errors import UserError
from ganherd.util.registry import METRICS as METRICS
from ganherd.util.registry import load_target
from ganherd.util.text import did_you_mean

if TYPE_CHECKING:
    from torch import Tensor

Number = TypeVar("Number", float, "Tensor")


@dataclass(frozen=True)
class Metric:
    """A metric: the function that measures it, one line about it, and what it needs."""

    measure: Callable[[ScoringContext], ScoreEntry]
    about: str
    best: float  # the value of a perfect mixture; inf: there is no limit
    direction: Literal["lower", "higher", "nearest"]  # which values are better; nearest: those nearest to `best`
    needs_classes: bool = False  # data with labels of at least two classes
    needs_asking: bool = False  # members that generate one class each, or take a label
    needs_generators: bool = False  # a mixture, not only its samples
    # Measured by default at the end of a training and by `ganherd score`; only by the latter; never
    when: Literal["train", "score", "asked"] = "asked"
    # Returns whether it is measured by default on this data; None: on all data
    fits: Callable[[Any], bool] | None = None
    bounds: tuple[float, float] = (-math.inf, math.inf)  # the least and the largest possible value
    contest: bool = False  # compares runs with each other, by their discriminators
    title: str = ""  # what people call it; empty: its name
    # Which value real data would have: the best one; the key of scores.json that has it; empty: not known
    real: str = ""
    # What a value below and above that of real data says in a table
    beyond_real: tuple[str, str] = ("worse", "worse")
    settings: type[BaseModel] | None = None  # the model of its settings
    # Returns the function that measures it with these settings
    measure_with: Callable[[Mapping[str, Any]], Callable[[ScoringContext], ScoreEntry]] | None = None

    @classmethod
    def adopt(
        cls,
        name: str,
        target: Any,
        *,
        direction: Literal["lower", "higher", "nearest"] = "lower",
        best: float | None = None,
        on: On = "images",
        settings: type[BaseModel] | None = None,
        about: str = "",
        **facts: Any,
    ) -> Metric:
        """Check a metric that a user registers, and return its entry (see `ganherd.register.metric`)."""
        if direction not in _BEST:
            raise UserError(f"the metric {name} has direction {direction!r}: use one of {', '.join(_BEST)}.")
        if direction == "nearest" and best is None:
            raise UserError(f"the metric {name} has direction nearest: give the best value, too.")
        if on not in get_args(On):
            raise UserError(f"the metric {name} compares {on!r}: use one of {', '.join(get_args(On))}.")
        about = about or (inspect.getdoc(target) or "").partition("\n")[0]
        facts |= {"settings": settings, "measure_with": partial(measure_by, name, target, on, settings)}
        measure = measure_by(name, target, on, settings)
        return cls(measure, about, _BEST[direction] if best is None else best, direction, **facts)

    def merit(self, value: Number) -> Number:
        """Return a value turned so that more is better: itself, its negative, or minus its distance from the best value.

        >>> METRICS["fid"].merit(3.0), METRICS["recall"].merit(0.9), METRICS["density"].merit(1.5)
        (-3.0, 0.9, -0.5)
        """
        if self.direction == "higher":
            return value
        return -value if self.direction == "lower" else -abs(value - self.best)

    def cost(self, value: Number) -> Number:
        """Return a value turned so that less is better, for searches that minimise: the negative of `merit`."""
        return -self.merit(value)

    def bounds_of(self, entry: ScoreEntry) -> tuple[float, float]:
        """Return the least and the largest possible value of a score; a count is at most the number that it is a count of.

        >>> METRICS["fid"].bounds_of({}), METRICS["modes"].bounds_of({"of": 8})
        ((0.0, inf), (0.0, 8.0))
        """
        (least, largest), total = self.bounds, entry.get("of")
        return least, min(largest, float(total)) if isinstance(total, int) else largest

    @property
    def worst(self) -> float:
        """Return inf or -inf, whichever is the bad end of this metric."""
        return -math.inf if self.direction == "higher" else math.inf

    @property
    def goal(self) -> str:
        """Return in words which values are better.

        >>> METRICS["fid"].goal, METRICS["density"].goal
        ('lower is better', '1 is best')
        """
        return f"{self.best:g} is best" if self.direction == "nearest" else f"{self.direction} is better"


_BEST = {"lower": 0.0, "higher": math.inf, "nearest": math.nan}  # if a user's metric does not give it


def title_of(name: str) -> str:
    """Return what people call a metric.

    >>> title_of("fid"), title_of("label_accuracy"), title_of("of_a_later_version")
    ('FID', 'label accuracy', 'of a later version')
    """
    metric = METRICS.get(name)
    return (metric.title if metric else "") or name.rpartition(":")[2].replace("_", " ")


def late(target: str) -> Callable[[ScoringContext], ScoreEntry]:
    """Return a function that imports `module:function` of this package when it is called, so that names need no PyTorch.

    >>> late("metrics.frechet:measure_fid").__name__
    'measure_fid'
    """

    def measure(material: ScoringContext) -> ScoreEntry:
        result: ScoreEntry = load_target(f"ganherd.{target}")(material)
        return result

    measure.__name__ = target.partition(":")[2]
    return measure


def refuse_single_run(material: ScoringContext) -> ScoreEntry:
    """Skip a metric that compares runs with each other."""
    raise MetricSkipped(
        "it is a contest of runs, judged by their discriminators: `ganherd score --metrics gam2 RUN RUN`"
    )


def _share(target: str, about: str, **facts: Any) -> Metric:
    """Return a metric that is a share, of which 1 is the highest and the best."""
    return Metric(late(target), about, **{"best": 1.0, "direction": "higher", "bounds": (0.0, 1.0), **facts})


def _distance(target: str, about: str, **facts: Any) -> Metric:
    """Return a metric that is a distance, of which 0 is the lowest and the best."""
    return Metric(late(target), about, **{"best": 0.0, "direction": "lower", "bounds": (0.0, math.inf), **facts})


def _unbounded(target: str, about: str, **facts: Any) -> Metric:
    """Return a metric of which the higher is the better, without a limit."""
    return Metric(late(target), about, **{"best": math.inf, "direction": "higher", **facts})


def _contest(title: str, about: str) -> Metric:
    """Return a metric of several runs against each other."""
    facts: Any = {"best": math.inf, "direction": "higher", "bounds": (0.0, 1.0), "contest": True, "title": title}
    return Metric(refuse_single_run, about, **facts)


_METRICS: dict[str, Metric] = {
    "label_accuracy": _share(
        "metrics.label_accuracy:measure",
        "samples that a classifier of the real data sees as the label that was asked for",
        needs_classes=True,
        needs_asking=True,
        when="train",
        real="held_out_accuracy",
        beyond_real=("worse", "more typical"),
    ),
    "histogram": _distance(
        "metrics.distributions.histogram:measure",
        "total variation distance between the classes seen in samples of the mixture and p(y)",
        bounds=(0.0, 1.0),
        needs_classes=True,
        when="train",
        title="class histogram",
        real="by_chance",
    ),
    "diversity": Metric(
        late("metrics.diversity:measure"),
        "spread of the generated pixels, coordinates or columns by the data's, in the class where it is least",
        best=1.0,
        direction="nearest",
        bounds=(0.0, math.inf),
        when="train",
        real="best",
        beyond_real=("less varied", "more varied"),
    ),
    "fid": _distance(
        "metrics.frechet:measure_fid",
        "Fréchet distance between Gaussians fitted to the features of samples and data",
        when="train",
        title="FID",
        real="by_chance",
    ),
    "ifid": _distance(
        "metrics.frechet:measure_ifid",
        "mean over the classes of the Fréchet distance within each: the FID of per-class herds",
        needs_classes=True,
        needs_asking=True,
        when="score",
        title="IFID",
    ),
    "kid": _distance(
        "metrics.kid:measure",
        "kernel distance between the features of samples and data; without bias, also for few samples",
        bounds=(-math.inf, math.inf),
        when="train",
        title="KID",
        real="best",
    ),
    "precision": _share("metrics.prdc:measure_precision", "samples that lie where the data is: fidelity", when="score"),
    "recall": _share("metrics.prdc:measure_recall", "data that lies where samples are: variety", when="score"),
    "density": Metric(
        late("metrics.prdc:measure_density"),
        "how many data neighbourhoods hold a sample, by their number",
        best=1.0,
        direction="nearest",
        bounds=(0.0, math.inf),
        when="score",
    ),
    "coverage": _share("metrics.prdc:measure_coverage", "data that has a sample in its neighbourhood", when="score"),
    "classifier_score": _unbounded(
        "metrics.inception_score:measure_classifier",
        "exp of the information between sample and class, as a classifier of the real data sees it",
        bounds=(1.0, math.inf),
        needs_classes=True,
        when="score",
    ),
    "inception_score": _unbounded(
        "metrics.inception_score:measure_inception",
        "the same by the Inception network, with a classifier head that --head gives",
        bounds=(1.0, math.inf),
    ),
    "columns": _distance(
        "metrics.distributions.columns:measure_columns",
        "mean Wasserstein-1 distance of the columns of a table, in standard deviations of each",
        when="train",
        fits=lambda data: data.kind == "rows",
        title="column distance",
        real="by_chance",
    ),
    "correlations": _distance(
        "metrics.distributions.columns:measure_correlations",
        "mean absolute difference between the correlations of columns in samples and in data",
        bounds=(0.0, 2.0),
        when="train",
        fits=lambda data: data.kind == "rows" and data.shape[0] > 1,
        title="correlation difference",
        real="by_chance",
    ),
    "modes": _unbounded(
        "metrics.modes:measure",
        "modes captured of 2-D data whose modes are known: ring8, grid25, R15",
        bounds=(0.0, math.inf),
        when="train",
        fits=lambda data: data.kind == "points" and bool(data.labels),
        real="of",
    ),
    "stacked_modes": _unbounded(
        "metrics.stacked_modes:measure",
        "modes of 1,000 that stacks of three digits show, as a classifier of digits reads them",
        bounds=(0.0, 1000.0),
        when="score",
        fits=lambda data: data.name == STACKED,
    ),
    "memorisation": Metric(
        late("metrics.memorisation:measure"),
        "samples that look like copies of one image, point or row of the training data; 0.05 is chance",
        best=0.05,
        direction="nearest",
        bounds=(0.0, 1.0),
        real="by_chance",
        beyond_real=("fewer copies", "more copies"),
    ),
    "ais": _unbounded(
        "metrics.ais.ais_mixture:measure",
        "log-likelihood of held-out images by annealed importance sampling, in nats, with its gap",
        needs_generators=True,
        title="AIS",
    ),
    "gam2": _contest("GAM-II", "samples that discriminators call real which their generator did not meet (GAM-II)"),
    "gam": _contest(
        "GAM",
        "battles won against the generators of the other runs, each judged by the other's discriminator; a tie is half",
    ),
}

for _name, _metric in _METRICS.items():
    METRICS.add(_name, _metric)
METRICS.seal()

GROUPS = {  # names of several metrics, and other names
    "prdc": ("precision", "recall", "density", "coverage"),
    "tvd": ("histogram",),
    "class_histogram": ("histogram",),
    "gam_ii": ("gam2",),
}
ORDER = {"train": 0, "score": 1, "asked": 2}
_USERS_FUNCTION = Metric(refuse_single_run, "a function of your own", best=-math.inf, direction="lower")


def metric_of(score: str) -> Metric:
    """Return the metric behind a score that mixtures are chosen by; of a user's function, lower is better.

    >>> metric_of("tvd").goal, metric_of("density").goal, metric_of("my_scores:far").goal
    ('lower is better', '1 is best', 'lower is better')
    """
    return _USERS_FUNCTION if is_own(score) else METRICS[_known(score)[0]]


def known_metrics(
    names: Sequence[str] | None,
    when: Literal["train", "score"] = "train",
    dataset: Any = None,
    more: Iterable[str | MetricEntry] = (),
) -> list[str]:
    """Return names of metrics as the registry has them, each once. A name may have settings: `contrast(window=3)`.

    Args:
        names: The user's words, which give leave to import the plug-ins that they name; None: those that are measured by default.
        when: At which time they are measured by default.
        dataset: The data; some metrics are measured by default for some data only.
        more: Metrics that the recipe of a run adds to the default. They give no leave.

    >>> known_metrics(["PRDC", "label-accuracy"])
    ['precision', 'recall', 'density', 'coverage', 'label_accuracy']
    >>> known_metrics("fid")
    ['fid']
    """
    if names is None:
        usual = {name: metric for name, metric in METRICS.items() if ORDER[metric.when] <= ORDER[when]}
        fitting = [n for n, m in usual.items() if m.fits is None or (dataset is not None and m.fits(dataset))]
        return list(dict.fromkeys([*fitting, *(name if isinstance(name, str) else _bound(name) for name in more)]))
    if not isinstance(names, Iterable):
        raise UserError(f"metrics is a {type(names).__name__}: give a list of names, such as ['fid'].")
    several = [names] if isinstance(names, str) else names
    if wrong := [name for name in several if not isinstance(name, str)]:
        raise UserError(f"a metric is named by text, such as 'fid', not by {wrong[0]!r}.")
    return list(dict.fromkeys(one for name in several for one in _known(name)))


def _bound(entry: MetricEntry) -> str:
    """Register a metric with its settings, and return its name with these; only its name if all of them are defaults.

    Without leave to import it, return its name.
    """
    if METRICS.may_load(entry.name) and entry.text != entry.name:
        metric = METRICS[entry.name]
        assert metric.measure_with is not None  # it has settings
        title = metric.title and entry.text.replace(entry.name, metric.title, 1)
        METRICS.add_variant(
            entry.text, replace(metric, measure=metric.measure_with(entry.settings), settings=None, title=title)
        )
        return entry.text
    return entry.name


def _with_settings(text: str) -> str | None:
    """Return the name of a metric that a user writes with settings; None if it has none."""
    try:
        if (parsed := parse_metric(text)) is None:
            return None
        (name,) = _known(parsed["name"])
        if METRICS[name].settings is None:
            raise ValueError(f"the metric {name} has no settings: leave them out")
        entry = read_metric({"name": name, "settings": full_settings(METRICS, name, parsed["settings"], name)})
    except ValueError as error:
        raise UserError(f"metric {text}: {str(error).rstrip('.')}.") from None
    return entry if isinstance(entry, str) else _bound(entry)


def _known(name: str) -> tuple[str, ...]:
    """Return the metrics of a name, which may be that of a group; a UserError suggests the nearest name."""
    if bound := _with_settings(name):
        return (bound,)
    key = name.strip().lower().replace("-", "_").replace(" ", "_")
    if key in GROUPS:
        return GROUPS[key]
    for known in (key, name.strip()):
        if METRICS.is_known(known):
            METRICS.vouch(known)
            return (known,)
    names = [*METRICS.names(), *GROUPS]
    raise UserError(
        f"there is no metric named {name!r}{did_you_mean(key, names, ' ({})')}: use some of {', '.join(names)}"
    )
