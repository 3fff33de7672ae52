import sys

from eqcheck.cli import main

sys.exit(main())
