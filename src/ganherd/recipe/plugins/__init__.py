"""What a recipe says about plug-ins: their settings, and which of them it names."""
