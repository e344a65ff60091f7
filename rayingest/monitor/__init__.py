"""Observe a running loader: its figures, what limits its speed, and what removes the limit."""

from rayingest.monitor.diagnose import Diagnosis, diagnose, diagnose_ranks

__all__ = ["Diagnosis", "diagnose", "diagnose_ranks"]
