"""Help for all rooms: checks of arguments, precision, threads, numbers that depend on the machine, saved fits."""
