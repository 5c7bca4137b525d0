"""What a server carries: arrivals, trace replay, measurement, report, capacity, planning, and the race against its peers."""
