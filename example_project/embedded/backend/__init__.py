"""Django's PostgreSQL on the embedded server: ``ENGINE = "example_project.embedded.backend"``."""
