"""The charts, as Vega-Lite specifications: what is drawn, for each of two sizes."""
