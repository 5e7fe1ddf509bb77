"""Hamiltonian Monte Carlo for all points × chains as one tensor; a move never synchronises with the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ganherd.util.errors import UserError

Decoder = Callable[[Tensor], Tensor]  # maps u [n, k], standard normal, to means [n, …], row by row


@dataclass(frozen=True)
class Hmc:
    """Settings of Hamiltonian Monte Carlo, as in Wu et al. (2017). All points and chains share one step size."""

    leapfrog: int = 10
    step: float = 0.01  # at the start
    shortest: float = 1e-4
    longest: float = 0.5
    target: float = 0.65  # acceptance rate that the step size is adapted to
    memory: float = 0.9  # weight of the past in the running acceptance
    grow: float = 1.02
    shrink: float = 0.98


class Likelihood:
    """log N(x; decoder(u), variance · I) of every chain, and its gradient with respect to u."""

    def __init__(self, decoder: Decoder, x: Tensor, variance: float, budget: int) -> None:
        self.decoder = decoder
        self.x = x[:, None]  # [P, 1, d]
        self.variance = variance
        self.constant = -0.5 * x.shape[1] * math.log(2 * math.pi * variance)
        self.budget = budget  # bytes that one call of the decoder may need
        self._points: int | None = None

    def __call__(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Map u [P, C, k] to log p(x | u) [P, C] and its gradient [P, C, k]."""
        at_once = self._points = self._points or points_at_once(self.decoder, u, self.budget)
        if len(u) <= at_once:
            return self._of_points(u, self.x)
        # All chains move together, so that the available memory does not change results
        parts = [self._of_points(u[i : i + at_once], self.x[i : i + at_once]) for i in range(0, len(u), at_once)]
        return torch.cat([p for p, _ in parts]), torch.cat([slope for _, slope in parts])

    def _of_points(self, u: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return log p(x | u) and its gradient for the chains of some points."""
        with torch.enable_grad():
            flat = u.detach().flatten(0, 1).requires_grad_()  # [p × C, k]
            mean = self.decoder(flat).reshape(*u.shape[:2], -1)  # [p, C, d]
            off = x - mean.detach()
            (slope,) = torch.autograd.grad(mean, flat, off / self.variance)
        log_p = off.square().sum(-1) * (-0.5 / self.variance) + self.constant
        return log_p, slope.reshape(u.shape)


def points_at_once(decoder: Decoder, u: Tensor, budget: int) -> int:
    """Return the number of points whose chains fit into `budget` bytes, estimated from what autograd saves for one row."""

    def saved_bytes(rows: int) -> int:
        size = 0

        def weigh(tensor: Tensor) -> Tensor:
            nonlocal size
            size += tensor.nbytes
            return tensor

        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(weigh, lambda tensor: tensor):
            out = decoder(torch.zeros(rows, u.shape[-1], dtype=u.dtype, device=u.device, requires_grad=True))
        return size + 4 * out.nbytes  # the residual, its square and two gradients

    per_row = max(1, saved_bytes(3) - saved_bytes(2))  # both save the weights, which cancel
    return max(1, budget // (2 * per_row * u.shape[1]))  # twice, for the backward pass


class Chains:
    """Markov chains [P, C] at positions u. A move leaves the distribution p(u) p(x | u)^beta unchanged.

    Every number that changes is a tensor in fixed storage, so that a CUDA graph can hold a move.
    """

    def __init__(self, likelihood: Likelihood, u: Tensor, hmc: Hmc, generator: torch.Generator, graph: bool) -> None:
        self.likelihood, self.hmc, self.generator = likelihood, hmc, generator
        self.u = u.clone()  # [P, C, k]
        self.log_p, self.slope = (part.clone() for part in likelihood(self.u))
        if not bool(torch.isfinite(self.log_p).all()):
            raise UserError("the decoder makes values that are not finite from standard noise: train it again.")
        self.beta = torch.zeros((), dtype=u.dtype, device=u.device)
        self.step = torch.full_like(self.beta, hmc.step)
        self.accepted = torch.full_like(self.beta, hmc.target)  # running mean of the acceptance
        self._noise = torch.empty_like(self.u)
        self._level = torch.empty_like(self.log_p)
        self._graph = self._captured() if graph and u.is_cuda else None

    def move(self, beta: Tensor) -> None:
        """Propose a move for every chain at this temperature, accept or reject it, and adapt the step size."""
        self.beta.copy_(beta)
        # Drawn outside of the graph, so that numbers are the same with and without it
        self._noise.normal_(generator=self.generator)
        self._level.uniform_(generator=self.generator)
        if self._graph is not None:
            self._graph.replay()
        else:
            self._propose()

    def _propose(self) -> None:
        """Follow a trajectory of leapfrog steps from each chain, and accept or reject its end."""
        hmc, beta, step = self.hmc, self.beta, self.step
        u, log_p, slope, v = self.u, self.log_p, self.slope, self._noise
        before = _joint(beta, u, v, log_p)
        v = v + 0.5 * step * (beta * slope - u)
        for i in range(hmc.leapfrog):
            u = u + step * v
            log_p, slope = self.likelihood(u)
            v = v + (step if i < hmc.leapfrog - 1 else 0.5 * step) * (beta * slope - u)
        # a proposal that is not finite is never accepted
        gain = (_joint(beta, u, v, log_p) - before).nan_to_num(nan=-math.inf, posinf=-math.inf)
        taken = self._level.log() < gain  # [P, C]
        self.u.copy_(torch.where(taken[..., None], u, self.u))
        self.slope.copy_(torch.where(taken[..., None], slope, self.slope))
        self.log_p.copy_(torch.where(taken, log_p, self.log_p))
        rate = gain.clamp(max=0.0).exp().mean()
        self.accepted.mul_(hmc.memory).add_((1 - hmc.memory) * rate)
        longer = torch.where(self.accepted > hmc.target, step * hmc.grow, step * hmc.shrink)
        self.step.copy_(longer.clamp(hmc.shortest, hmc.longest))

    def _captured(self) -> torch.cuda.CUDAGraph | None:
        """Return a move as one CUDA graph, because small nets are limited by kernel launches; None if it cannot be captured."""
        state = (self.u, self.slope, self.log_p, self.step, self.accepted)
        saved = [tensor.clone() for tensor in state]
        self._noise.zero_()
        self._level.fill_(0.5)
        device = self.u.device
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(2):  # libraries choose their kernels now, before the capture
                self._propose()
        torch.cuda.current_stream(device).wait_stream(side)
        graph, held = torch.cuda.CUDAGraph(), True
        try:
            with torch.cuda.graph(graph):
                self._propose()
        except RuntimeError:  # the decoder synchronises with the CPU
            held = False
            torch.cuda.synchronize(device)
        for tensor, old in zip(state, saved, strict=True):
            tensor.copy_(old)
        return graph if held else None


def _joint(beta: Tensor, u: Tensor, v: Tensor, log_p: Tensor) -> Tensor:
    """Return log p(u) + log p(v) + beta · log p(x | u) of every chain [P, C], up to a constant, for positions u and momenta v.

    An exact trajectory of Hamiltonian dynamics would not change it; the change decides whether a proposal is accepted.
    """
    return beta * log_p - 0.5 * (u.square().sum(-1) + v.square().sum(-1))
