"""Everything through PgBouncer in transaction mode, which gives each transaction any session."""
