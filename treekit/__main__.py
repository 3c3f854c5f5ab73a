"""python -m treekit: the command line."""

import os
import sys

from treekit.check._command import main

if __name__ == "__main__":
    status: int = main()
    os.dup2(2, 1)  # what the user's code writes when the process ends is not part of the report on standard output
    sys.exit(status)
