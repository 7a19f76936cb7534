"""Benchmarks: what is promised of speed and size, measured. `infra/bin/bench NAME` runs one."""
