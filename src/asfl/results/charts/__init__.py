"""What charts show (`chart`, and a builder for each), and what draws them: matplotlib (`files`), Plotly (`plotly`)."""
