"""What commands print: views of a run, tables, curves, pages."""
