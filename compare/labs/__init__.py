"""Labs of a course: what each asks, a student's folder, predictions, marks, and a class of folders."""
