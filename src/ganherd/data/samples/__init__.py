"""Images with labels that come one after the other: tars, tables, the Hugging Face Hub, and data sets of Python."""
