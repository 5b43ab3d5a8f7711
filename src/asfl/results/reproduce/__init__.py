"""Every experiment of the paper as a recipe: which runs it needs, what it draws, and which claims it tests.

Recipes share their runs: a world (a preset with some settings) is trained once, whichever recipe asks for it.
"""

from asfl.results.reproduce.archive import Found
from asfl.results.reproduce.claims import Finding
from asfl.results.reproduce.plan import Plan, plan_recipe
from asfl.results.reproduce.recipes import RECIPES, Recipe, Scale, recipe_named
from asfl.results.summary import Outcome

__all__ = ["RECIPES", "Finding", "Found", "Outcome", "Plan", "Recipe", "Scale", "plan_recipe", "recipe_named"]
