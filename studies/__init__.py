"""Studies behind the documentation: each prints a table and draws a picture; `make study` runs them all."""
