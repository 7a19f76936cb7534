"""A simulation of the storage protocol: `python tests/simulation/commit.py --help`."""
