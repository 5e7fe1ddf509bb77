"""Readers of data sets: files, folders of images, toys and published sets."""
