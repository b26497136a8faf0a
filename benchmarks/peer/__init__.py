"""The peer: a reference handler, written by hand with FastAPI and SQLAlchemy's ORM.

It follows the reference pseudocode step by step, in one transaction per request, as a careful
team would write it: a right-sized pool, ON CONFLICT, SELECT FOR UPDATE, apply once.
"""
