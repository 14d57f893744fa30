"""The paper's claims against our measurements: verdicts, figures, tables and one page, from results alone."""
