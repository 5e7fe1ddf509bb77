"""Cellular coevolution in the plainest PyTorch, one cell after another: the reference of promise 1 for grids.

Written from the papers' description: modules, `torch.optim.Adam` for each individual, Python loops and deep copies. With
ganherd it shares only what defines a run: initial weights, the numbers that are drawn, and the order of the data.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from ganherd.herd import rng
from ganherd.herd.rng import Streams
from ganherd.training.setup.assemble import PreparedHerd
from promises.separate import SeparateGan


@dataclass
class Individual:
    """A net with its optimiser, whose learning rate is the one that Adam really uses, and the fitness that it had last."""

    net: nn.Module
    adam: torch.optim.Adam
    loss: str = ""
    fitness: float = float("inf")
    born: int = -1  # the iteration in which it was trained

    def clone(self) -> Individual:
        net, adam = copy.deepcopy((self.net, self.adam))
        return Individual(net, adam, self.loss, self.fitness)

    @property
    def lr(self) -> float:
        return float(self.adam.param_groups[0]["lr"])


class PlainGrid:
    """A torus of rows × columns cells with `population` individuals each, of one seed; `first` is the number of its first cell."""

    def __init__(self, assembly: PreparedHerd, rows: int, columns: int, first: int = 0) -> None:
        self.first = first
        self.recipe, self.rules, self.feed = assembly.recipe, assembly.herd.rules, assembly.herd.feed
        self.settings = self.recipe.strategy.cellular
        self.p, self.rows, self.columns = self.settings.population, rows, columns
        self.trains = (
            self.settings.offspring or self.p
        )  # nets that a cell trains; streams and data are those of its members
        self.seed = self.recipe.run.seed
        gans = [SeparateGan(assembly, first * self.trains + member) for member in range(rows * columns * self.trains)]
        self.base = [gan.base for gan in gans]
        self.lr0 = {"g": self.recipe.optim.lr_g, "d": self.recipe.optim.lr_d}
        cells = [range(cell * self.trains, cell * self.trains + self.p) for cell in range(rows * columns)]
        self.pops = {kind: [[self._individual(gans[m], kind) for m in cell] for cell in cells] for kind in ("g", "d")}
        if self.settings.mutation.losses and self.settings.mutation.loss_each == "creation":
            for cell, pop in zip(cells, self.pops["g"], strict=True):
                for member, one in zip(cell, pop, strict=True):
                    one.loss = self._drawn_loss(Streams(self.base[member], 0))

    @staticmethod
    def _individual(gan: SeparateGan, kind: str) -> Individual:
        return Individual(getattr(gan, kind), getattr(gan, f"adam_{kind}"), gan.loss)

    def neighbourhood(self, cell: int) -> list[int]:
        """The cell, then W, N, E, S on the torus, each once."""
        if self.settings.topology == "isolated":
            return [cell]
        row, column = divmod(cell, self.columns)
        around = [(row, column), (row, column - 1), (row - 1, column), (row, column + 1), (row + 1, column)]
        return list(dict.fromkeys(r % self.rows * self.columns + c % self.columns for r, c in around))

    # -- iterations -----------------------------------------------------------------------------------------------

    def run(self, iterations: int, span: int) -> None:
        for iteration in range(iterations):
            self.iterate(iteration, span)

    def iterate(self, iteration: int, span: int) -> None:
        cells = range(self.rows * self.columns)
        after: dict[str, list[list[Individual]]] = {"g": [], "d": []}
        for cell in cells:
            # everyone as it is now; only copies are ever trained, and fitness is in the eye of the cell
            sub = {
                kind: [replace(one) for other in self.neighbourhood(cell) for one in pops[other]]
                for kind, pops in self.pops.items()
            }
            new, old = self._one_cell(cell, sub, iteration, span)
            for kind in ("g", "d"):
                for one in new[kind]:
                    one.born = iteration
                after[kind].append(self._settled(old[kind], new[kind], iteration))
        self.pops = after

    def _one_cell(self, cell: int, sub: dict, iteration: int, span: int) -> tuple[dict, dict]:
        """(trained, old) individuals of the cell, by kind."""
        x, noise = self._fitness_sample(cell, iteration, max(self.trains, len(sub["g"])))
        old = {kind: sub[kind][: self.p] for kind in ("g", "d")}
        if self.settings.selection:
            self._evaluate(sub["g"], sub["d"], sub, x, noise)
            new = {
                kind: [self._tournament(sub[kind], cell, iteration, number, j).clone() for j in range(self.trains)]
                for number, kind in enumerate(("g", "d"))
            }
        else:
            new = {kind: [one.clone() for one in old[kind]] for kind in ("g", "d")}
        self._train(cell, new, sub, iteration * span, span)
        self._evaluate(new["g"], new["d"], sub, x, noise)
        return new, old

    def _tournament(self, sub: list[Individual], cell: int, iteration: int, number: int, j: int) -> Individual:
        key = rng.keys(np.zeros(1, np.int64), self.seed, -rng.TOURNAMENT, self.first + cell, iteration, number)
        u = rng.draw(key, (self.trains, len(self._widest()) * self.p), "uniform", torch.float64)[0, j].tolist()
        drawn = sorted(range(len(sub)), key=lambda i: u[i])[: self.settings.tournament]
        return min((sub[i] for i in drawn), key=lambda one: one.fitness)

    def _widest(self) -> list[int]:
        return max((self.neighbourhood(cell) for cell in range(self.rows * self.columns)), key=len)

    def _settled(self, old: list[Individual], new: list[Individual], iteration: int) -> list[Individual]:
        """The worst old ones give way to the best new ones where these are strictly better, or they are too old; the best first."""
        best = sorted(new, key=lambda one: one.fitness)
        if not self.settings.selection or self.settings.survival == "comma":
            return best[: self.p]

        def too_old(one: Individual) -> bool:
            return 0 < self.settings.max_age < iteration - one.born

        stay = sorted(old, key=lambda one: (too_old(one), one.fitness))
        for i in range(self.settings.replacements):
            if too_old(stay[self.p - 1 - i]) or best[i].fitness < stay[self.p - 1 - i].fitness:
                stay[self.p - 1 - i] = best[i]
        return sorted(stay, key=lambda one: one.fitness)

    # -- fitness --------------------------------------------------------------------------------------------------

    def _fitness_sample(self, cell: int, iteration: int, generators: int) -> tuple[Tensor, list[Tensor]]:
        key = rng.keys(np.zeros(1, np.int64), self.seed, -rng.FITNESS, self.first + cell, iteration)
        n = self.settings.fitness.samples
        own = self.feed.member_rows((self.first + cell) * self.trains)
        generator = rng.seed_(torch.Generator(), rng.key(int(key[0]), rng.ORDER))
        order = torch.randperm(len(own), generator=generator).numpy()
        x = self.feed.gather(torch.from_numpy(own[np.resize(order, n)])[None])[0][0]
        shape = (n, self.rules.latent)
        noise = [
            Streams(rng.keys(key, a), 0).prior((rng.NOISE,), shape, self.rules.prior, x.dtype)[0]
            for a in range(generators)
        ]
        return x, noise

    def _evaluate(self, g: list[Individual], d: list[Individual], sub: dict, x: Tensor, noise: list[Tensor]) -> None:
        """All of g and of d against everyone that was gathered; column i of the generators has noise i."""
        fitness = []
        with torch.no_grad():
            for a, one in enumerate(g):
                losses, samples = [], _peek(one.net, noise[a])
                for other in sub["d"]:
                    logit = _peek(other.net, samples).flatten()
                    losses.append(float(bce(logit, torch.ones_like(logit))))
                fitness.append((one, losses))
            fakes = [_peek(other.net, noise[a]) for a, other in enumerate(sub["g"])]
            for one in d:
                losses, real = [], _peek(one.net, x).flatten()
                for images in fakes:
                    fake = _peek(one.net, images).flatten()
                    losses.append(float(bce(real, torch.ones_like(real)) + bce(fake, torch.zeros_like(fake))))
                fitness.append((one, losses))
        for one, losses in fitness:
            one.fitness = {"average": sum(losses) / len(losses), "worst": max(losses), "best": min(losses)}[
                self.settings.fitness.over
            ]

    # -- training -------------------------------------------------------------------------------------------------

    def _train(self, cell: int, new: dict, sub: dict, first: int, span: int) -> None:
        mutation = self.settings.mutation
        if mutation.each == "iteration":
            for j in range(self.trains):
                draws = Streams(self.base[cell * self.trains + j], first)
                for number, kind in enumerate(("g", "d")):
                    self._mutate(new[kind][j], kind, draws, number)
        if mutation.losses and mutation.loss_each == "iteration":
            for j in range(self.trains):
                new["g"][j].loss = self._drawn_loss(Streams(self.base[cell * self.trains + j], first))
        # the others that may be met: as they were when the iteration began
        opponents = self.settings.opponents if self.settings.selection else "neighbourhood"
        others = sub if opponents == "neighbourhood" else new
        rest = {kind: [replace(one, net=copy.deepcopy(one.net)) for one in others[kind]] for kind in ("g", "d")}
        for step in range(first, first + span):
            for j in range(self.trains):
                draws = Streams(self.base[cell * self.trains + j], step)
                rivals = {
                    "winners": [(j + i) % self.trains for i in range(1, self.trains)],
                    "partner": [],
                    "neighbourhood": [i for i in range(len(rest["g"])) if i != j % self.p],
                }[opponents]
                met = {kind: [new[kind][j], *(rest[kind][i] for i in rivals)] for kind in ("g", "d")}
                if mutation.losses and mutation.loss_each == "batch":
                    new["g"][j].loss = self._drawn_loss(draws)
                self._generator_step(new["g"][j], met["d"], draws)
                if step % (self.rules.skip_d + 1) == 0:
                    member = cell * self.trains + j
                    self._discriminator_step(member, new["d"][j], met["g"], draws, step, new["g"][j].loss)

    def _generator_step(self, one: Individual, opponents: list[Individual], draws: Streams) -> None:
        z = self._noise(draws, 1)
        logit = self._meet(opponents, draws, 0).net(one.net(z)).flatten()
        loss = {
            "minimax": lambda: -bce(logit, torch.zeros_like(logit)),
            "non-saturating": lambda: bce(logit, torch.ones_like(logit)),
            "least-squares-sigmoid": lambda: (torch.sigmoid(logit) - 1).pow(2).mean(),
        }[one.loss]()
        self._step(one, loss, "g", draws, 0)

    def _discriminator_step(
        self, member: int, one: Individual, opponents: list[Individual], draws: Streams, step: int, loss_name: str
    ) -> None:
        row = self.first * self.p + member
        x = self.feed.batch_at(slice(row, row + 1), self.base[member], step)[0][0]
        fake = self._meet(opponents, draws, 1).net(self._noise(draws, 0)).detach()
        real_logit, fake_logit = one.net(x).flatten(), one.net(fake).flatten()
        name = self.settings.mutation.d_loss or loss_name
        if name == "least-squares-sigmoid":
            loss = (torch.sigmoid(real_logit) - 1).pow(2).mean() + torch.sigmoid(fake_logit).pow(2).mean()
        else:
            loss = bce(real_logit, torch.ones_like(real_logit)) + bce(fake_logit, torch.zeros_like(fake_logit))
        self._step(one, loss, "d", draws, 1)

    def _step(self, one: Individual, loss: Tensor, kind: str, draws: Streams, number: int) -> None:
        grads = torch.autograd.grad(loss, list(one.net.parameters()))
        if self.settings.mutation.each == "batch":
            self._mutate(one, kind, draws, number)
        for parameter, grad in zip(one.net.parameters(), grads, strict=True):
            parameter.grad = grad
        one.adam.step()

    def _mutate(self, one: Individual, kind: str, draws: Streams, number: int) -> None:
        """The papers' Gaussian: lr <- max(0, lr + alpha · N(-lr0/10, lr0)), half of the time; or a log-normal factor."""
        mutation = self.settings.mutation
        if mutation.learning_rate == "off":
            return
        normal = float(draws.draw((rng.MUTATE, number, 0), (), "normal", torch.float64)[0])
        if float(draws.draw((rng.MUTATE, number, 1), (), "uniform", torch.float64)[0]) >= mutation.probability:
            return
        if mutation.learning_rate == "reference":
            lr = max(0.0, one.lr + mutation.strength * (normal * self.lr0[kind] - self.lr0[kind] / 10))
        else:
            lr = one.lr * float(np.exp(mutation.strength * normal))
        one.adam.param_groups[0]["lr"] = lr

    # -- what a run defines ---------------------------------------------------------------------------------------

    def _meet(self, opponents: list[Individual], draws: Streams, number: int) -> Individual:
        """Pick an opponent at random; the own partner if there is no other."""
        if len(opponents) == 1:
            return opponents[0]
        u = float(draws.draw((rng.OPPONENT, number), (), "uniform", torch.float64)[0])
        return opponents[int(u * len(opponents))]

    def _drawn_loss(self, draws: Streams) -> str:
        u = float(draws.draw((rng.MUTATE_LOSS,), (), "uniform", torch.float64)[0])
        return self.settings.mutation.losses[int(u * len(self.settings.mutation.losses))]

    def _noise(self, draws: Streams, call: int) -> Tensor:
        shape = (self.rules.batch, self.rules.latent)
        return draws.prior((rng.NOISE, call), shape, self.rules.prior, torch.float64)[0]

    # -- what is compared -----------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Everything that training changes [N, …], under the names of ganherd's state."""
        out: dict[str, list[Tensor]] = {}
        for kind in ("g", "d"):
            for number, one in enumerate(one for cell in self.pops[kind] for one in cell):
                parameters = list(one.net.parameters())
                own = {f"{kind}.params": _row(p.detach() for p in parameters)}
                own |= {f"{kind}.buffers.{name}": buffer for name, buffer in one.net.named_buffers()}
                for name, key in (("m", "exp_avg"), ("v", "exp_avg_sq")):
                    moments = [one.adam.state[p].get(key, torch.zeros_like(p)) for p in parameters]
                    own[f"{kind}.adam.{name}"] = _row(moments)
                own[f"set.lr_{kind}"] = torch.tensor(one.lr, dtype=torch.float64)
                own[f"fitness.{kind}"] = torch.tensor(one.fitness, dtype=torch.float64)
                assert number == len(out.get(f"{kind}.params", []))
                for name, value in own.items():
                    out.setdefault(name, []).append(value)
        return {name: torch.stack(values) for name, values in out.items()}

    def losses(self) -> list[str]:
        return [one.loss for cell in self.pops["g"] for one in cell]


def _peek(net: nn.Module, x: Tensor) -> Tensor:
    """What a net in training mode says, without a trace in its buffers."""
    before = [buffer.clone() for buffer in net.buffers()]
    out: Tensor = net(x)
    for buffer, was in zip(net.buffers(), before, strict=True):
        buffer.copy_(was)
    return out


def _row(parts) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])
