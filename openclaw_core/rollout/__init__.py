"""Room 2: serves the student, captures turns, asks the judge, makes samples. Never imports loss or teacher."""
