"""What an application asks any node of the cluster: calls, change feeds, staged writes."""
