"""What a framework's files say: experiments, job files, recipes and scripts as candidates."""
