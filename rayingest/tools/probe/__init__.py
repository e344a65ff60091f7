"""The probe: which settings suffice, and what the data costs."""
