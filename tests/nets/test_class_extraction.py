"""A class's own nets out of conditional ones: the same images, and logits that are the same up to spectral norm's factor."""

from __future__ import annotations

import pytest
import torch

from ganherd.nets import class_extraction
from ganherd.nets.conditional import ConditionalDiscriminator, ConditionalGenerator
from ganherd.nets.residual import ResidualDiscriminator, ResidualGenerator

SHAPE, LATENT, CLASSES = (3, 16, 16), 6, 3


def conditional_generator(attention: bool) -> ConditionalGenerator:
    """One whose classes differ, in gains and shifts, and whose attention is not nothing."""
    torch.manual_seed(0)
    made = ConditionalGenerator(SHAPE, LATENT, CLASSES, width=4, attention=attention).double()
    for name, value in made.named_parameters():
        if "gain" in name or "shift" in name or "gamma" in name or "last.0" in name:
            torch.nn.init.normal_(value, 1.0, 0.5)
    return made


@pytest.mark.parametrize("attention", [False, True])
def test_each_class_makes_the_images_that_the_conditional_generator_makes_of_it(attention: bool) -> None:
    conditional = conditional_generator(attention)
    y = torch.arange(CLASSES).repeat_interleave(torch.tensor([9, 5, 7]))
    z = torch.randn(len(y), LATENT, dtype=torch.float64)
    buffers = {name: value.clone() for name, value in conditional.named_buffers()}
    every = list(class_extraction.generators(conditional, z, y))
    assert all(
        torch.equal(value, buffers[name]) for name, value in conditional.named_buffers()
    )  # it was only looked at
    images = conditional.train()(z, y)
    assert len(every) == CLASSES
    for label, named in enumerate(every):
        own = ResidualGenerator(SHAPE, LATENT, width=4, attention=attention).double()
        own.load_state_dict(named)
        assert torch.allclose(own.train()(z[y == label]), images[y == label], rtol=0, atol=1e-6)  # in training
        own.load_state_dict(named)
        assert torch.allclose(own.eval()(z[y == label]), images[y == label], rtol=0, atol=1e-6)  # and by its statistics
        others = own(z[y != label])
        assert not torch.allclose(others, images[y != label], rtol=0, atol=1e-3)


@pytest.mark.parametrize("body", ["residual", "plain"])
@pytest.mark.parametrize("spectral", [False, True])
@pytest.mark.parametrize("size", [{}, {"growth": 1, "smallest": 8, "flat_blocks": 2}], ids=["growing", "constant"])
def test_each_class_judges_as_the_conditional_discriminator_does_of_it(
    spectral: bool, body: str, size: dict[str, int]
) -> None:
    torch.manual_seed(1)
    conditional = ConditionalDiscriminator(SHAPE, CLASSES, width=4, spectral=spectral, body=body, **size).double()
    x = torch.randn(5, *SHAPE, dtype=torch.float64)
    with torch.no_grad():
        conditional.train()(x, torch.zeros(5, dtype=torch.int64))  # spectral norm has an estimate
    for label in range(CLASSES):
        own = ResidualDiscriminator(SHAPE, width=4, spectral=spectral, body=body, **size).double()
        own.load_state_dict(class_extraction.discriminator(conditional, label))
        theirs = conditional.eval()(x, torch.full((5,), label)) - conditional.head.bias
        ours = own.eval()(x) - own.head.bias
        factor = own.head.weight.norm() if spectral else 1.0
        assert torch.allclose(ours * factor, theirs, rtol=1e-9, atol=1e-12)
