"""What all variables share: base class, constants, keys, protocols, and how objects become variables."""
