"""The reference library: instances with stable names, their best known schedules, and bounds."""
