"""Transfers between device and host: links with streams, pinned memory of the host, and moves of tensors."""
