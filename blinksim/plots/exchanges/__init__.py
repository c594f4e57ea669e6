"""Pictures of alltoall and alltoallv: the traffic, and what it loads."""
