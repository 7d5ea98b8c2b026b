"""What every stage uses: errors, intervals, tables, units, text for people."""
