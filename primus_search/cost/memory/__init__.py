"""Device memory of a training step: one effect per module, in bytes, on the worst pipeline rank.

share        what one device sees of model and micro-batch       parameters    weights, gradients, optimizer
activations  what waits for backward, tensor by tensor           logits        head and loss; vision towers
buffers      collectives, gradients in flight                    mixer_memory  parameters and saved tensors of mixers
device_context  what the driver holds
rank_moments micro-batches and layers that each rank holds       price         bytes of each
chunk_memory all of it over chunks of candidates, and of one candidate rank by rank
"""
