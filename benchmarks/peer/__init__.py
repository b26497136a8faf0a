"""The peer: the reference handler of the task, written by hand with FastAPI and SQLAlchemy's ORM.

It follows the reference pseudocode step by step, in one transaction per request, the way a
careful team would write it: a right-sized pool, ON CONFLICT, SELECT FOR UPDATE, apply-once.
"""
