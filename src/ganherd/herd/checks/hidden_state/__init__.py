"""Detect hidden state of a net, i.e. what it remembers between calls other than in parameters and buffers.

Hidden state can be in attributes of the module and in variables outside of it.
"""
