"""Serve the live page (`ganherd ui`): a read-only web server for runs, their numbers and pictures, and samples."""
