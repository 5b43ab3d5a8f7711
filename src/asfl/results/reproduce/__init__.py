"""Every experiment of the paper as a recipe: which runs it needs, what it draws, and which claims it tests.

Recipes share their runs: a world (a preset with some settings) is trained once, whichever recipe asks for it.
"""
