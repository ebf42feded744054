"""`python -m prefect_bt.node_agent FOLDER LOCK [PORT]`: started by the local substrate only.

LOCK and PORT are descriptors: of the node's lock, and of what holds its gang's port.
"""

import sys

from prefect_bt.node_agent.guard import main

main(sys.argv[1:])
