"""Train classifiers on few real images, with and without generated ones, and compare their accuracy."""
