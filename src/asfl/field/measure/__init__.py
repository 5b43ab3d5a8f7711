"""What rounds really take: clocks, meters, and the estimates made from them."""
