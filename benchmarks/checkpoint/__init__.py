"""Time and memory of convert-ckpt on random weights of true shapes, against cp and sha256sum of the same bytes."""
