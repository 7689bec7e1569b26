"""Tests of rows that somebody wrote into the tables by hand, each column as wrong as it can be."""
