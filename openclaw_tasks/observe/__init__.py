"""What people see of a run: events, report, trackers, pictures, logs. None of it can hurt training."""
