"""Problems and solutions in the format of CVRPLIB: read, checked and written."""
