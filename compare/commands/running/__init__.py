"""The work of the commands, each under its command's name. These import PyTorch and what renders a screen."""
