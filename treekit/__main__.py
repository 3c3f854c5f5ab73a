"""The command line, `python -m treekit`: runs the command, and exits with its status."""

import os
import sys

from treekit.check._command import main

if __name__ == "__main__":
    status: int = main()
    os.dup2(2, 1)  # keeps what the user's code prints at exit out of the report on standard output
    sys.exit(status)
