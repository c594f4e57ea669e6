"""One module for every measurement, and what they share; each that measures or writes is also a script."""
