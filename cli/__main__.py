"""`python -m jitreplay.cli` is the command `jitreplay`."""

from .main import main

main(prog_name="jitreplay")
