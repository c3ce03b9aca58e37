"""Rules of the resource and where they are applied: files of users, objects of the API server, the CRD. Pure."""
