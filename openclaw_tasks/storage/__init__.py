"""Storage targets: where stripes and documents lie. Whole buffers only; knows nothing of runs or groups."""
