"""Call one generator and one discriminator in plain PyTorch, and refuse nets that do not fit the data or each other."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ganherd.herd.checks.source_line import assignment_line
from ganherd.herd.checks.trial import batch_sizes, first_that_runs
from ganherd.herd.member_randomness import MemberRandomness
from ganherd.herd.state import takes_label
from ganherd.util.errors import UserError, with_type

Shape = tuple[int, ...]
_FACTORS = (
    1.0,
    30.0,
    1000.0,
)  # by which images are scaled to see whether a discriminator's outputs stay between 0 and 1
_LEAST_RANGE = 0.01  # outputs that differ by less are constant, e.g. because the last weights start from zero


@dataclass(frozen=True)
class NetPair:
    """A generator and a discriminator of a herd, as functions that build one of each, with their names in messages."""

    generator: str
    discriminator: str
    make_g: Callable[[], nn.Module]
    make_d: Callable[[], nn.Module]
    classes: int  # the number of classes of the data

    def refuse_misfits(self, latent: int, shape: Shape, batch: int, may_draw: bool) -> None:
        """Raise a `UserError` if the nets do not fit the data or each other.

        Args:
            latent: The number of values in the noise.
            shape: The shape of one sample of the data.
            batch: The number of samples in a batch; smaller batches are tried first.
            may_draw: Whether another check reports random numbers that do not come from a member's stream.
        """
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                rows, sampled, outputs, drew = first_that_runs(
                    lambda rows: self._call(rows, latent, shape), batch_sizes(batch)
                )
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"the nets {self.generator} and {self.discriminator} do not run on data of shape {shape} with latent {latent}, "
                f"for which z has the shape [batch, {latent}]: {with_type(error)}."
            ) from error
        if sampled[1:] == shape and sampled[0] != rows:
            raise UserError(
                f"the generator {self.generator} makes {sampled[0]} images of a batch of {rows}: one for each z."
            )
        if sampled != (rows, *shape):
            raise UserError(
                f"the generator {self.generator} makes images of shape {sampled[1:]}, but the data has {shape}."
            )
        if math.prod(outputs[0]) != rows:
            raise UserError(
                f"the discriminator {self.discriminator} answers {outputs[0]} for {rows} images; it must give one logit for each."
            )
        if len(outputs) > 1 and outputs[1:] != [(rows, self.classes)]:
            raise UserError(
                f"the discriminator {self.discriminator} answers {len(outputs)} tensors, the second {outputs[1]} for {rows} "
                f"images; in addition to the logits it may return logits of the classes, {(rows, self.classes)} here, "
                "and nothing else."
            )
        if drew and not may_draw:
            raise UserError(
                "the nets draw random numbers where ganherd cannot give each member its own (dropout inside of attention "
                "does so): use randn, rand or nn.Dropout instead."
            )

    def _call(self, rows: int, latent: int, shape: Shape) -> tuple[int, Shape, list[Shape], bool]:
        """Return (rows, shape of the samples, shapes of the discriminator's outputs, whether nets drew by themselves).

        Nets do so if they use PyTorch's generator, and not the random numbers that ganherd gives each member.
        """
        g, d = self.make_g(), self.make_d()
        _refuse_misplaced_label(g)
        _refuse_misplaced_label(d)
        before, y = torch.random.get_rng_state(), torch.zeros(rows, dtype=torch.int64)
        with MemberRandomness(torch.tensor(0)):
            x = g(torch.randn(rows, latent), *((y,) if takes_label(g) else ()))
        if not isinstance(x, Tensor):
            raise UserError(
                f"the generator {self.generator}{assignment_line(g)} returns a {type(x).__name__}: it must return one tensor."
            )
        shapes: list[Shape] = []
        if tuple(x.shape) == (rows, *shape):
            with MemberRandomness(torch.tensor(1)):
                answer = d(x, *((y,) if takes_label(d) else ()))
            shapes = _shapes_of(answer, f"the discriminator {self.discriminator}{assignment_line(d)}")
        return rows, tuple(x.shape), shapes, not torch.equal(before, torch.random.get_rng_state())

    def returns_probabilities(self, shape: Shape, batch: int) -> bool:
        """Return whether all outputs of the discriminator lie between 0 and 1, whatever the images, as after a sigmoid.

        The outputs for random images of very different contrast are looked at. A discriminator that cannot read values outside
        of the range of images is not judged: the result is False.
        """

        def logits(rows: int) -> Tensor:
            d, y = self.make_d(), torch.zeros(rows, dtype=torch.int64)
            images = torch.randn(rows, *shape, generator=torch.Generator().manual_seed(0))
            with MemberRandomness(torch.tensor(0)):
                answers = [d(images * scale, *((y,) if takes_label(d) else ())) for scale in _FACTORS]
            return torch.cat([(one[0] if isinstance(one, tuple) else one).flatten() for one in answers])

        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                outputs = first_that_runs(logits, batch_sizes(batch))
        except Exception:  # whatever a user's net raises for such values
            return False
        low, high = float(outputs.min()), float(outputs.max())
        return low >= 0 and high <= 1 and high - low > _LEAST_RANGE


def _refuse_misplaced_label(net: nn.Module) -> None:
    """Raise a `UserError` if a net takes labels `y`, but not as its second argument."""
    arguments = [p.name for p in inspect.signature(net.forward).parameters.values() if p.kind is not p.KEYWORD_ONLY]
    if takes_label(net) and arguments[1:2] != ["y"]:
        raise UserError(
            f"forward of {type(net).__name__}{assignment_line(net)} must take y as its second argument, after its input."
        )


def _shapes_of(answer: object, net: str) -> list[Shape]:
    """Return the shapes of a discriminator's outputs; raise if it returns anything but tensors."""
    outputs = answer if isinstance(answer, tuple) else (answer,)
    if outputs and all(isinstance(output, Tensor) for output in outputs):
        return [tuple(output.shape) for output in outputs]
    kinds = ", ".join(type(output).__name__ for output in outputs)
    returned = f"a tuple of {kinds or 'nothing'}" if isinstance(answer, tuple) else f"a {kinds}"
    raise UserError(
        f"{net} returns {returned}: it must return one tensor of logits, or the pair (logits, logits of the classes)."
    )
