"""Functions of users, in processes of their own."""
