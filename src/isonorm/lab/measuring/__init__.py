"""Figures of the papers that train nothing: layers, their time, and the operations they take."""
