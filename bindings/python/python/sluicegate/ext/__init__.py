"""Sluicegate in frameworks and libraries. Each module needs the package that it is for."""
