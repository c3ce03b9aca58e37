"""The client of the API server: requests, credentials, errors, exec, the budget for writes."""
