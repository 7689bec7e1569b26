"""Old and new code, old and new tables, and the way from one to the other under traffic."""
