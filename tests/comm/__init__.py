"""Tests of `comm/`. A package, because another one of this name may be installed next to notebooks."""
