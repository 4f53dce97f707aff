"""`python -m headroom` is the `headroom` command."""
import sys

from . import _command

sys.exit(_command.main())
