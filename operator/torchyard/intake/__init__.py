"""Where agents call in: the HTTP server, authentication, and the book of what they said."""
