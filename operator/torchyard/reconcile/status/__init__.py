"""Parts of a status: conditions, goodput, figures from reports."""
