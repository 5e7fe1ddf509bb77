"""The whole of ganherd from Python: train a recipe, load its mixture, sample a label, read and measure scores."""

import sys

import ganherd

steps = sys.argv[1] if len(sys.argv) > 1 else "300"

# A packaged recipe by its name, with changes; a file, a mapping or a ganherd.Recipe will do as well, or your own data.
run = ganherd.train("digits-wcgan", budget=f"{steps}steps", train={"batch": 32})
print(f"trained in {run.path}")

# The result is a mixture: a generator for each digit, and how probable each one is.
mixture = run.mixture
print(f"{mixture.members} members, labels {', '.join(mixture.labels)}, step {mixture.step}")

sevens = mixture.sample(16, label="7", seed=1)  # uint8 [16, 1, 8, 8]; image i of a seed is the same for every n
print(f"{len(sevens)} sevens of shape {sevens.x.shape[1:]}, mean brightness {sevens.x.mean():.1f}")

anything = mixture.sample(1000)  # labels as frequent as in the data
print(f"of 1,000 samples {int((anything.y == 7).sum())} are sevens")

for name, score in run.scores.items():  # measured when training ended
    print(f"{name.replace('_', ' ')} {score['value']:.3f} of {score['samples']:,} samples")
again = run.score(["diversity"], samples=500, seed=1)  # with other samples
print(f"diversity {again['diversity']['value']:.3f} of {again['diversity']['samples']:,} samples")
losses = run.metrics()  # step, metric, member, seed and value: columns for pandas.DataFrame(run.metrics())
print(f"{len(losses['value']):,} numbers recorded up to step {losses['step'].max()}")
print(run.verdict.sentence)  # is it good, and if not, why, and what to try
