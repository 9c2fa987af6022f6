"""The rules, launches and spaces of each form of kernel that needs more than `parts` says."""
