"""The record of a run or a comparison: the files in its folder, their types, reading and writing."""
