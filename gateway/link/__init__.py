"""The link between the planes: questions that workers ask the control plane, and messages both ways, over a Unix socket."""
