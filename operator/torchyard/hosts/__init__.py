"""Runs on hosts: what runs there, beside the controller of one machine, of which all else is used."""
