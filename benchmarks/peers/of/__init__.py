"""The peers, a module each. What is imported from a peer is imported where it is used."""
