"""`python -m prefect_bt.node FOLDER LOCK_DESCRIPTOR`: started by the local substrate only."""

import sys

from prefect_bt.node.guard import main

main(sys.argv[1:])
