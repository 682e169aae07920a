"""`python -m traceml`."""

import sys

from traceml.cli.main import main

sys.exit(main())
