"""Prints the counts and every failure."""

from benchmarks.campaign.misuse import run

found = run()
print(*found.pop("failures"), sep="\n")
print(*(f"{count} {outcome}" for outcome, count in found.items()), sep=", ")
