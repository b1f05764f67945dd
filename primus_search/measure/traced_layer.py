"""What a trace of one layer finds."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedLayer:
    """What torch says of one layer for one micro-batch on one device.

    activation_bytes   held from forward to backward, the layer's input included, its output not
    forward_peak_bytes, backward_peak_bytes  highest sum of live activations in that pass, input and output included
    """

    activation_bytes: float
    forward_peak_bytes: float
    backward_peak_bytes: float

    @property
    def workspace_bytes(self) -> float:
        """What the worse pass needs on top of the activations kept."""
        return max(self.forward_peak_bytes, self.backward_peak_bytes) - self.activation_bytes
