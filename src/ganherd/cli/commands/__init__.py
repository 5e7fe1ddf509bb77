"""Define the commands, in one file each: parse options, call the code, print the result.

Import torch only if needed.
"""
