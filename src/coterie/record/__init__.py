"""The files in the folder of a run or a comparison."""
