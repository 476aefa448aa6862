"""Paceline: drafter and target of a large language model as separate services."""

import os

__version__ = "0.1.0"

# Turns that a compute thread waits for more work before it sleeps, read by OpenMP when torch is loaded: about a
# millisecond, more than there is between two operators of a pass. Its own default of some ten milliseconds keeps a core
# from drafter, gateway and client after every pass; on two cores plain steps of float32 took 46 ms instead of 35.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
