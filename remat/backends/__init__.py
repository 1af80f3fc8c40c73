"""Who answers: one file or small folder per solver; knows the modelling layer and nothing of graphs."""
