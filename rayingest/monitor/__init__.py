"""Where the time goes: looking at a running loader, naming what is short, and telling it."""

from rayingest.monitor.diagnose import Diagnosis, diagnose, diagnose_ranks

__all__ = ["Diagnosis", "diagnose", "diagnose_ranks"]
