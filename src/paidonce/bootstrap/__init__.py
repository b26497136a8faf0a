"""The composition root: the only package that knows every other one.

`rules` turns the settings into what processing needs, `services` composes the services, `api` the
HTTP application of operators, `application` a running process.
"""
