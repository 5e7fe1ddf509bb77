"""Draw pictures of arrays: grids of images, points and charts. Nothing here depends on runs."""
