"""The lab: the command line and the experiments behind it. The library itself never imports it."""
