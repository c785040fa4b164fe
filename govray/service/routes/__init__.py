"""The routes, one module a subject. Each has a ``router``, which ``app.py`` puts under ``/v1``."""
