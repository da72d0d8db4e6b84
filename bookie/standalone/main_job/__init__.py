"""`bookgate run`: text into ledgers, a Spark job over them, compared with reading the files."""
