"""What `manage.py demo` needs around its story: a database, processes, figures and the checks."""
