"""Reports: records of runs in, tables, figures and one page out."""
