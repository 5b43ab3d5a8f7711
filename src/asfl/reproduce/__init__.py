"""Every experiment of the paper as a recipe: which runs it needs, what it draws, and which claims it tests.

Recipes share their runs: a world (a preset with some settings) is trained once, whoever asks for it.
"""

from asfl.reproduce.claims import Finding
from asfl.reproduce.outcome import Outcome
from asfl.reproduce.plan import Plan, plan_recipe
from asfl.reproduce.recipes import RECIPES, Recipe, Scale, recipe_named

__all__ = ["RECIPES", "Finding", "Outcome", "Plan", "Recipe", "Scale", "plan_recipe", "recipe_named"]
