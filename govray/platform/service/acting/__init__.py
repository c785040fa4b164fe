"""What a caller may set going: experiments, cases, settings of projects."""
