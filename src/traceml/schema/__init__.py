"""The nouns that every stage shares. Standard library only."""
