"""For every test: the interrupt signal works, also in a run that a shell put in the background.

Such a shell makes its children ignore SIGINT, and what is ignored stays so in every process that a
test starts; tests that press Ctrl-C would wait for ever.
"""

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
