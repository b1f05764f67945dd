"""Traffic between devices: tensor, context, expert and data parallelism, sharding."""
