"""What a caller may set going: submissions, cases, settings of projects."""
