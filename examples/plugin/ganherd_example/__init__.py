"""Plug-ins for ganherd, one in each module."""
