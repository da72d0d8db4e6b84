"""How every process tells people and programs what it does: results, errors, questions, progress, and logs."""
