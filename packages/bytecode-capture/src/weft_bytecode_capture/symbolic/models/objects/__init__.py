"""Classes, their instances, attributes and special methods; modules; objects that nothing is known of."""
