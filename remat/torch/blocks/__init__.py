"""Models of repeated blocks: one capture for each kind of block, and a schedule of its own for each block."""
