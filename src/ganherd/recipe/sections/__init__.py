"""The sections of a recipe that hold settings of one kind; nets, strategy and augmentations have modules of their own."""
