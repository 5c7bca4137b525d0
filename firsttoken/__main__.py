"""`python -m firsttoken`."""

import sys

from firsttoken.cli import main

sys.exit(main())
