"""The work of the commands, each under its command's name; these modules import PyTorch.

Imported by `compare.commands` only, once the device is decided.
"""
