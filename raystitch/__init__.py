"""raystitch: do two trained vision networks work alike inside?

Importing the package loads neither torch nor ray.
"""

__version__ = "0.1.0"
