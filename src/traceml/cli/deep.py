"""`traceml deep`: like `traceml run`, and layers are measured too."""

from typing import Final

from traceml.cli import run as run_command

USAGE: Final = """\
usage: traceml deep [options] train.py [options] [--args] [arguments of the script]
       traceml deep [options] -m package.module [options] [--args] [arguments of the module]
       traceml deep [options] COMMAND [arguments of the command]

The same as `traceml run --deep`: run a training command unchanged, and also measure its layers. In a few
steps, each layer's forward and backward time is measured, with the memory of its parameters, gradients and
activations. Few enough steps are sampled that it adds less than 2 % to the training.
The options are those of `traceml run`.

examples:
  traceml deep train.py --lr 0.1                         a script with its own arguments
  traceml deep torchrun --nproc-per-node=4 train.py      any launcher; layers are compared between ranks
"""


def main(words: list[str]) -> int:
    """Run the command; the exit code is the command's own."""
    return run_command.main(["--deep", *words], "deep", USAGE)
