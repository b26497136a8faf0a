"""The HTTP API of operators: authentication, problem details, pages, OpenAPI, health."""
