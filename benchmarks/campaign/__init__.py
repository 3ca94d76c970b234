"""The campaign: seeded random problems, adversarial steps and misuse, counted; each failure is kept."""
