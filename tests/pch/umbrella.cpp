// Holds nothing: its target is there for the precompiled header.
