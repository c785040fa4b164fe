"""The routes, one module a subject. Each has a ``router``, which ``app.py`` puts under ``/v1``.

A new route needs its row in ``tests/platform/service/test_authorisation.py``: who may call it.
"""
