"""The pages of the Django admin, one module each."""
