"""What a fleet costs a deployment: the package's own claiming and reclaiming on a virtual clock."""
