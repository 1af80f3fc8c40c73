"""Settings of training frameworks that keep a budget, each certified on the graph, with the distance to a bound."""

from remat.experiments.framework_plans.plan import FRAMEWORKS, FrameworkPlan, Setting, framework_plan

__all__ = ["FRAMEWORKS", "FrameworkPlan", "Setting", "framework_plan"]
