"""Language models that write semantic codes, behind one protocol."""
