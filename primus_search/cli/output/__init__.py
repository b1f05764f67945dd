"""What commands write: files, tables, progress, standard streams."""
