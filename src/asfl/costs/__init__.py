"""What a round costs: delay and energy, modelled or measured."""
