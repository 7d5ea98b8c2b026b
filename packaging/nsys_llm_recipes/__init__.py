"""Recipes for NVIDIA Nsight Systems, installed. This folder is what NSYS_RECIPE_PATH has to name."""
