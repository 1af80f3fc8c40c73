"""Modules that train within a memory budget (:func:`remat.torch.rematerialize`)."""
