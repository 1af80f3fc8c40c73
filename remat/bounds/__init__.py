"""What nobody can beat: lower bounds on peak and cost, each with its scope."""
