"""One actor per role. Plain classes: run/placement.py makes Ray actors of them."""
